"""The recorder, with a tokenizer that counts words: what it reads, in which order, and what it refuses."""
import contextlib
import gzip
import io
import json
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "traces"))
import record  # noqa: E402


def count_words(_name):
    return lambda text: len(text.split()), {"name": "words"}


class RecorderTest(unittest.TestCase):
    def setUp(self):
        record.load_tokenizer = count_words
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.out = self.folder / "out.txt"

    def run_recorder(self, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = record.main([*map(str, arguments), "--out", str(self.out), "--jobs", "1", "--quiet"])
        return status, err.getvalue()

    def lengths(self):
        return [int(line) for line in self.out.read_text().split()]

    def corpus(self):
        root = self.folder / "corpus"
        (root / "b").mkdir(parents=True)
        (root / "a.txt").write_text("one two three")
        (root / "b" / "c.html").write_text("<html><script>x = 1 2 3</script><p>four</p><p>five</p></html>")
        (root / "b" / "d.gz").write_bytes(gzip.compress(b"six seven eight nine"))
        (root / "copy.txt").write_text("one two three")
        (root / "empty.txt").write_text("  \n")
        (root / "picture.png").write_bytes(b"\x89PNG\0\0")
        return root

    def test_one_file_is_one_document_plus_its_end_token(self):
        status, said = self.run_recorder(self.corpus(), "--html", "--no-shuffle")
        self.assertEqual(status, 0)
        self.assertEqual(said, "note: not recorded: 1 duplicate, 1 empty, 1 not text; --keep-duplicates keeps equal texts\n")
        self.assertEqual(self.lengths(), [4, 3, 5])  # a.txt 3 + 1, c.html 2 + 1, d.gz 4 + 1: folders after files
        about = json.loads((self.folder / "out.txt.json").read_text())
        self.assertEqual(about["documents"], 3)
        self.assertEqual(about["tokens"], 12)
        self.assertEqual(about["left_out"], {"duplicate": 1, "empty": 1, "not text": 1})

    def test_filters_and_flags(self):
        root = self.corpus()
        self.run_recorder(root, "--include", "*.txt", "--keep-duplicates", "--no-eod", "--no-shuffle")
        self.assertEqual(self.lengths(), [3, 3])

    def test_jsonl_names_the_bad_line(self):
        good = self.folder / "good.jsonl"
        good.write_text('{"text": "a b"}\n\n{"text": "c"}\n')
        self.assertEqual(self.run_recorder(good, "--no-shuffle")[0], 0)
        self.assertEqual(self.lengths(), [3, 2])
        bad = self.folder / "bad.jsonl"
        bad.write_text('{"text": "a b"}\n{"body": "c"}\n')
        self.out = self.folder / "never.txt"
        status, message = self.run_recorder(bad)
        self.assertEqual(status, 2)
        self.assertIn("bad.jsonl:2: no text in field 'text' (--field); found body", message)
        self.assertEqual(len([line for line in message.splitlines() if line.startswith("error: ")]), 1, message)
        self.assertFalse(self.out.exists())

    def test_a_chat_is_one_document(self):
        chats = [{"messages": [{"role": "user", "content": "one two"}, {"role": "assistant", "content": "three"}]},
                 {"conversations": [{"from": "human", "value": "four assistant"}]},
                 {"messages": [{"role": "user", "content": [{"type": "text", "text": "five"}, {"type": "image"}]}]}]
        path = self.folder / "chat.jsonl"
        path.write_text("\n".join(json.dumps(row) for row in chats))
        self.assertEqual(self.run_recorder(path, "--no-shuffle")[0], 0)
        self.assertEqual(self.lengths(), [6, 4, 3])  # two roles and three words, a role and two, a role and one; the end
        path.write_text(json.dumps({"messages": [{"role": "user"}]}))
        self.assertIn("no text in field 'messages'", self.run_recorder(path, "--no-shuffle")[1])

    def test_missing_input_and_empty_corpus_are_refused(self):
        status, message = self.run_recorder(self.folder / "nowhere")
        self.assertEqual(status, 2)
        self.assertIn("no such file or folder", message)
        (self.folder / "void").mkdir()
        status, message = self.run_recorder(self.folder / "void")
        self.assertEqual(status, 2)
        self.assertIn("no document was found", message)

    def test_what_is_wrong_with_the_files_is_said_before_anything_is_read(self):
        def no_tokenizer(_name):
            raise AssertionError("the tokenizer was loaded first")

        record.load_tokenizer = no_tokenizer
        self.assertIn("nowhere: no such file or folder", self.run_recorder(self.folder / "nowhere")[1])
        for path, line in ((self.folder / "nowhere", "nowhere: no such file or folder"), (self.folder, "--out: expected lengths.txt")):
            with contextlib.redirect_stderr(io.StringIO()) as err:
                self.assertEqual(record.main([str(path), "--quiet"]), 2)
            self.assertIn(line, err.getvalue())
        self.out = self.folder / "out.txt.zst"
        with mock.patch.dict(sys.modules, {"zstandard": None}):
            status, message = self.run_recorder(self.corpus())
        self.assertEqual(status, 2)
        self.assertIn("out.txt.zst: .zst needs zstandard", message)
        self.assertFalse(self.out.exists())

    def test_documents_of_a_packed_row(self):
        ids = {"input_ids": [5, 6, 7, 8, 9, 10, 11, 12]}
        for more in (
            {"seq_lengths": [3, 5]}, {"document_lengths": [3, 5]}, {"cu_seqlens": [0, 3, 8, -1]}, {"cu_seq_lens_q": [0, 3, 8]}, {"seq_start_id": [0, 3]},
            {"position_ids": [0, 1, 2, 0, 1, 2, 3, 4]}, {"seq_idx": [0, 0, 0, 1, 1, 1, 1, 1]},
            {"attention_mask": [1, 1, 1, 2, 2, 2, 2, 2]},
            {"position_ids": [0, 1, 2, 0, 1, 2, 3, 4], "attention_mask": [1] * 8},
        ):
            self.assertEqual(record.documents_of_row({**ids, **more}, "t"), [3, 5], more)
        for more in (
            {"attention_mask": [0, 0, 0, 1, 1, 1, 1, 1]}, {"segment_ids": [1, 1, 1, 1, 1, 0, 0, 0]}, {"seq_lengths": [5]},
            {"segment_ids": [0, 0, 0, 1, 1, 1, 1, 1], "attention_mask": [0, 0, 0, 1, 1, 1, 1, 1]},
            {"position_ids": [0, 1, 2, 3, 4, 0, 0, 0], "attention_mask": [1, 1, 1, 1, 1, 0, 0, 0]},
        ):
            self.assertEqual(record.documents_of_row({**ids, **more}, "t"), [5], more)
        with self.assertRaisesRegex(record.UserError, "t: expected lengths of documents"):
            record.documents_of_row({**ids, "seq_lengths": [3, 9]}, "t")

    def test_a_field_that_no_documents_can_be_read_from_is_refused(self):
        tokens = {"input_ids": [1, 2, 3, 4, 5, 6]}
        for fields, says in (({"cu_seqlens": [0.0, 2.5, 6.0]}, "cu_seqlens: expected a list of integers"), ({"cu_seqlens": "x"}, "list of integers"),
                             ({"cu_seqlens": [0, -1, 6]}, "rise from 0"), ({"attention_mask": [1, 1, 0]}, "expected 6 numbers"),
                             ({"position_ids": [0, 1, 0]}, "expected 6 numbers"),
                             ({"segment_ids": [0, 0, 1, 1, 2, 2]}, "segment_ids: expected an attention_mask next to it.* begins with 2 zeros")):
            with self.assertRaisesRegex(record.UserError, says):
                record.documents_of_row({**tokens, **fields}, "row 1")
        for fields, lengths in (({"document_ids": [4, 4, 4, 9, 9, 9]}, [3, 3]), ({"document_ids": "a"}, [6]), ({"cu_seqlens": [0, 4, 6, -1, -1]}, [4, 2]),
                                ({"attention_mask": [[1, 1], [0, 1]]}, [6]), ({"seq_idx": [0, 0, 0, 1, 1, 1], "segment_ids": [1] * 6}, [3, 3])):
            self.assertEqual(record.documents_of_row({**tokens, **fields}, "row 1"), lengths, fields)

    def test_tables_of_token_ids_need_no_tokenizer(self):
        try:
            import pyarrow as pa
            import pyarrow.parquet
        except ImportError:
            self.skipTest("pyarrow is not installed")

        def no_tokenizer(_name):
            raise AssertionError("a tokenizer was loaded")

        record.load_tokenizer = no_tokenizer
        table = pa.table({"input_ids": [[1] * n for n in (100, 2000, 300)]})
        packed = pa.table({"input_ids": [[1] * 8, [1] * 4], "seq_lengths": [[3, 5], [4]]})

        def write(path, data, make=pa.ipc.new_stream):
            with pa.OSFile(str(path), "wb") as file, make(file, data.schema) as writer:
                writer.write_table(data, max_chunksize=1)
            return path

        pyarrow.parquet.write_table(table, self.folder / "t.parquet")
        pyarrow.parquet.write_table(table, self.folder / "renamed.bin")
        stream = write(self.folder / "data-00000-of-00001.arrow", table)
        random_access = write(self.folder / "f.arrow", table, pa.ipc.new_file)
        for path in (self.folder / "t.parquet", self.folder / "renamed.bin", stream, random_access):
            for field in ([], ["--field", "input_ids"]):
                self.assertEqual(self.run_recorder(path, *field, "--no-shuffle")[0], 0, path)
                self.assertEqual(self.lengths(), [100, 2000, 300], path)
        self.assertIsNone(json.loads((self.folder / "out.txt.json").read_text())["tokenizer"])
        # What save_to_disk writes, alone and in splits; rows that are packs.
        for name in ("set/train", "set/test"):
            folder = self.folder / name
            folder.mkdir(parents=True)
            write(folder / "data-00001-of-00002.arrow", packed)
            write(folder / "data-00000-of-00002.arrow", table.slice(0, 1))
            files = [{"filename": f"data-0000{i}-of-00002.arrow"} for i in (1, 0)]
            (folder / "state.json").write_text(json.dumps({"_data_files": files, "_indices_data_files": None}))
        (self.folder / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
        for folder in (self.folder / "set", self.folder / "set" / "test"):
            self.assertEqual(self.run_recorder(folder, "--no-shuffle")[0], 0)
            self.assertEqual(self.lengths(), [3, 5, 4, 100])
        self.assertEqual(self.run_recorder(self.folder / "set" / "test", "--field", "seq_lengths", "--no-shuffle")[0], 2)
        status, message = self.run_recorder(write(self.folder / "p.arrow", packed), "--field", "seq_lengths", "--no-shuffle")
        self.assertEqual((status, self.lengths()), (0, [3, 5, 4]), message)
        # A folder of tables; next to texts a table is no text.
        hub = self.folder / "hub"
        (hub / "data").mkdir(parents=True)
        pyarrow.parquet.write_table(table, hub / "data" / "train-00000.parquet")
        (hub / "README.md").write_text("a data set")
        self.assertEqual(self.run_recorder(hub, "--no-shuffle")[0], 0)
        self.assertEqual(self.lengths(), [100, 2000, 300])
        (hub / "notes.txt").write_text("one two")
        record.load_tokenizer = count_words
        self.assertEqual(self.run_recorder(hub, "--no-shuffle")[0], 0)
        self.assertEqual(self.lengths(), [4, 3])
        (self.folder / "broken.arrow").write_bytes(b"no such thing")
        status, message = self.run_recorder(self.folder / "broken.arrow")
        self.assertEqual(status, 2)
        self.assertIn("broken.arrow: expected a Parquet or Arrow file", message)

    def test_the_shuffle_is_the_one_of_the_policies(self):
        # SplitMix64 from state 0 gives 16294208416658607535, then 7960286522194355700. Three items: j = first mod 3 = 1
        # (digit sum 88) swaps items 2 and 1, then j = second mod 2 = 0 swaps items 1 and 0: [a b c] -> [a c b] -> [c a b].
        items = ["a", "b", "c"]
        record.shuffle(items, 0)
        self.assertEqual(items, ["c", "a", "b"])

    def test_long_texts_are_cut_at_line_ends_and_lose_nothing(self):
        text = ("x" * 999 + "\n") * 1000 + "y" * 900_000
        parts = list(record.pieces(text))
        self.assertEqual("".join(parts), text)
        self.assertTrue(all(len(part) <= record.PIECE for part in parts))
        self.assertTrue(parts[0].endswith("\n"))


if __name__ == "__main__":
    unittest.main()
