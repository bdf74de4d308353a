"""What the counters of a timeline (.pftrace, Perfetto's protobuf) reach."""

PACKET, EVENT, DESCRIPTOR = 1, 11, 60  # fields of a trace and of its packets
UUID, NAME, PARENT = 1, 2, 5  # of a track
TYPE, TRACK, VALUE, COUNTER = 9, 11, 30, 4  # of an event, and its type where it counts


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
