"""Reads a timeline (.pftrace, Perfetto's protobuf): its slices, and the largest values of its counters."""

PACKET, TIMESTAMP, EVENT, INTERNED, DESCRIPTOR = 1, 8, 11, 12, 60  # field numbers of a trace and of its
                                                                   # packets
UUID, NAME, PARENT = 1, 2, 5  # of a track
TYPE, TITLE, TRACK, VALUE = 9, 10, 11, 30  # field numbers of an event; its title is the number of an earlier
                                           # name
TITLES = 2  # field numbers of interned names: a number and a text each
BEGIN, END, COUNTER = 1, 2, 4  # types of events: a slice begins or ends, or a counter's value


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data):
    """(number, value) of every field of a message; bytes where it has a length."""
    at, found = 0, []
    while at < len(data):
        tag, at = varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire in (1, 2, 5):
            length, at = varint(data, at) if wire == 2 else ({1: 8, 5: 4}[wire], at)
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"no protobuf: wire type {wire}")
        found.append((tag >> 3, value))
    if at != len(data):
        raise ValueError(f"no protobuf: a field ends {at - len(data)} bytes behind the message")
    return found


def peaks(data, counter):
    """The largest value of every counter of that name, by the name of the track that it belongs to."""
    tracks, found = {}, {}
    for number, packet in fields(data):
        for kind, content in fields(packet) if number == PACKET else ():
            if kind == DESCRIPTOR:
                track = dict(fields(content))
                tracks[track[UUID]] = (track.get(NAME, b"").decode(), track.get(PARENT))
            elif kind == EVENT:
                event = dict(fields(content))
                if event[TYPE] == COUNTER:
                    found[event[TRACK]] = max(found.get(event[TRACK], 0), event[VALUE])
    return {
        tracks[tracks[track][1]][0]: value for track, value in found.items() if tracks[track][0] == counter
    }


def slices(data):
    """(track, name, begin, end) of every slice, in nanoseconds."""
    tracks, titles, open_slices, found = {}, {}, {}, []
    for number, packet in fields(data):
        content = dict(fields(packet)) if number == PACKET else {}
        if DESCRIPTOR in content:
            track = dict(fields(content[DESCRIPTOR]))
            tracks[track[UUID]] = track.get(NAME, b"").decode()
        for kind, item in fields(content.get(INTERNED, b"")):
            if kind == TITLES:
                title = dict(fields(item))
                titles[title[1]] = title[2].decode()
        if EVENT not in content:
            continue
        event = dict(fields(content[EVENT]))
        if event[TYPE] == BEGIN:
            open_slices.setdefault(event[TRACK], []).append((titles[event[TITLE]], content[TIMESTAMP]))
        elif event[TYPE] == END:
            name, begin = open_slices[event[TRACK]].pop()
            found.append((tracks[event[TRACK]], name, begin, content[TIMESTAMP]))
    return found
