#!/usr/bin/env python3
"""Each rule of tidy.py finds its bad sample and leaves the good one alone."""
import tempfile
import unittest
from pathlib import Path

import tidy

CMAKE = """
space_folder(base)
space_folder(async DEPS space_base)
space_folder(store DEPS space_base pq)
space_folder(worker DEPS space_async TEST_DEPS space_store)
space_program(space-worker main_worker.cpp space_worker)
"""


class Tree(unittest.TestCase):
    def findings(self, files, cmake=CMAKE, build=None):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            for name, text in {"src/CMakeLists.txt": cmake, **files}.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return list(tidy.findings_of(root, build and root / build))

    def assert_finds(self, rule, path, text, line=None):
        found = self.findings({path: text})
        self.assertEqual([one.rule for one in found], [rule], found)
        if line is not None:
            self.assertEqual(found[0].line, line)

    def assert_clean(self, path, text):
        self.assertEqual(self.findings({path: text}), [])


class Arrows(Tree):
    def test_an_include_against_the_arrow_is_found(self):
        self.assert_finds("arrows", "src/async/a.cpp", '#include <string>\n#include "worker/w.hpp"\n', 2)

    def test_transitive_dependencies_and_own_files_are_fine(self):
        self.assert_clean("src/worker/a.cpp", '#include "base/b.hpp"\n#include "worker/a.hpp"\n#include "local.hpp"\n')

    def test_test_dependencies_are_for_tests_only(self):
        self.assert_clean("src/worker/a_test.cpp", '#include "store/s.hpp"\n')
        self.assert_finds("arrows", "src/worker/a.cpp", '#include "store/s.hpp"\n')

    def test_a_dependency_on_a_later_folder_is_found(self):
        found = self.findings({}, "space_folder(base DEPS space_async)\nspace_folder(async)\n")
        self.assertEqual([one.rule for one in found], ["arrows"])


class Places(Tree):
    def test_sql_outside_the_store_is_found(self):
        self.assert_finds("sql", "src/worker/a.cpp", 'auto q = "SELECT id FROM sandboxes";\n')
        self.assert_finds("sql", "src/worker/a.cpp", 'auto q = R"(\n  update sandboxes set state = 1\n)";\n')
        self.assert_clean("src/store/a.cpp", 'auto q = "select id from sandboxes";\n')

    def test_prose_is_no_sql(self):
        self.assert_clean("src/worker/a.cpp", 'auto m = "update the sandbox, or select another";\n// delete from x where\n')

    def test_heavy_headers_are_found_in_headers_and_in_wrong_folders(self):
        self.assert_finds("heavy", "src/worker/a.hpp", "#include <openssl/ssl.h>\n")
        self.assert_finds("heavy", "src/worker/a.cpp", "#include <libpq-fe.h>\n")
        self.assert_clean("src/store/a.cpp", "#include <libpq-fe.h>\n")

    def test_an_excuse_needs_the_rules_name(self):
        self.assert_clean("src/worker/a.cpp", "// tidy-allow(heavy): the driver reads notices here\n#include <libpq-fe.h>\n")
        self.assert_finds("heavy", "src/worker/a.cpp", "// tidy-allow(sql): wrong rule\n#include <libpq-fe.h>\n")


class Banned(Tree):
    def test_each_banned_name_is_found(self):
        for line in (
            "spawn(x, asio::detached);",
            "asio::co_spawn(executor, f());",
            "using namespace asio::experimental::awaitable_operators;",
            'std::system("ls");',
            'int r = system("ls");',
            "std::thread t;",
            "sleep(1);",
            "usleep(5);",
            "std::this_thread::sleep_for(1s);",
            "auto t = std::chrono::steady_clock::now();",
            "strcpy(a, b);",
            "auto x = yes ? co_await f() : g();",
            "ip::tcp::resolver resolver;",
        ):
            with self.subTest(line):
                self.assert_finds("banned", "src/worker/a.cpp", line + "\n", 1)

    def test_words_in_comments_literals_and_longer_names_are_fine(self):
        self.assert_clean(
            "src/worker/a.cpp",
            '// sleep(1) and system("x")\nlog("system(x) sleep(1)");\nfile_system(1);\nstd::thread::id id;\nco_await async::sleep_for(1ms);\n',
        )

    def test_co_spawn_is_fine_in_async(self):
        self.assert_clean("src/async/a.cpp", "asio::co_spawn(e, f());\n")


class Sizes(Tree):
    def function(self, lines):
        return "int f(int a,\n      int b) {\n" + "  a += b;\n" * (lines - 3) + "}\n"

    def test_a_function_over_the_limit_is_found_and_its_neighbour_is_not(self):
        self.assert_clean("src/worker/a.cpp", self.function(70))
        self.assert_finds("length", "src/worker/a.cpp", self.function(20) + "\n" + self.function(71), 22)

    def test_a_long_member_function_is_found_and_a_long_class_is_not(self):
        inner = "  void f() {\n" + "    x();\n" * 69 + "  }\n"
        self.assert_finds("length", "src/worker/a.hpp", "class A {\n" + inner + "};\n", 2)
        self.assert_clean("src/worker/a.hpp", "class A {\n" + "  int a;\n" * 200 + "};\n")
        self.assert_clean("src/worker/a.hpp", "namespace x {\n" + "int a();\n" * 200 + "}\n")

    def test_braces_in_literals_do_not_count(self):
        self.assert_clean("src/worker/a.cpp", "void f() {\n  g('{', \"{{{\", R\"({)\");\n}\n" + "int a;\n" * 100)

    def test_a_file_that_wants_a_second_noun_is_found(self):
        self.assert_finds("size", "src/worker/a.cpp", "int a;\n" * 801)


class TheTree(Tree):
    def test_files_that_no_target_builds_are_found(self):
        self.assert_finds("unbuilt", "src/other/a.cpp", "int a;\n")
        self.assert_finds("unbuilt", "src/main/main_other.cpp", "int main() {}\n")
        self.assert_finds("unbuilt", "src/worker/deep/a.cpp", "int a;\n")
        self.assert_clean("src/main/main_worker.cpp", "int main() {}\n")
        built = self.findings({"src/worker/deep/a.cpp": "int a;\n"}, CMAKE + "add_library(a worker/deep/a.cpp)\n")
        self.assertEqual(built, [])

    def test_with_a_build_every_file_must_be_in_it(self):
        found = self.findings(
            {"src/worker/a.cpp": "int a;\n", "build/dev/compile_commands.json": "[]"}, build="build/dev")
        self.assertEqual([(one.rule, one.path) for one in found], [("unbuilt", "src/worker/a.cpp")])

    def test_a_todo_needs_an_issue(self):
        self.assert_finds("todo", "docs/a.md", "x\nTODO: later\n", 2)
        self.assert_clean("docs/a.md", "TODO(#12): later\n")

    def test_identifiers_are_ascii_and_comments_need_not_be(self):
        self.assert_finds("ascii", "src/worker/a.cpp", "int größe;\n", 1)
        self.assert_clean("src/worker/a.cpp", '// größer → besser\nauto s = "größe";\n')

    def test_paths_of_one_machine_are_found(self):
        self.assert_finds("paths", "docs/a.md", "see /" + "work/x\n")
        self.assert_clean("docs/a.md", "see src/" + "work/x\n")

    def test_reasons_name_what_exists(self):
        files = {
            "test/system/b.py": "def test_boots():\n    pass\n",
            "test/security/elsewhere.json": '{"S01": "test/system/b.py::test_boots",\n"S02": "test/system/b.py::test_flies",\n"S03": "as test/system/c.py says"}\n',
        }
        found = [(one.line, one.text) for one in self.findings(files) if one.rule == "reasons"]
        self.assertEqual(found, [(2, "test/system/b.py has no test_flies"), (3, "there is no test/system/c.py")])

    def test_the_spec_names_tests_that_exist(self):
        files = {
            "src/worker/a_test.cpp": "TEST(Pool, IsBounded) {}\n",
            "test/system/b.py": "def test_boots():\n    pass\n",
            "docs/spec.md": "| promise | test |\n|---|---|\n| a | `Pool.IsBounded` |\n| b | `test/system/b.py::test_boots` |\n| c | pending |\n",
        }
        found = [one for one in self.findings(files) if one.rule == "spec"]
        self.assertEqual(found, [])
        files["docs/spec.md"] += "| d | `Pool.IsGreen` |\n| e | `test/system/b.py::test_flies` |\n| f | none |\n"
        found = [one.line for one in self.findings(files) if one.rule == "spec"]
        self.assertEqual(found, [6, 7, 8])

    def test_fault_points_are_named_after_their_folder_and_stand_once(self):
        self.assert_clean("src/worker/a.cpp", 'SPACE_FAULT("worker.create.disk_cloned");\n')
        self.assert_finds("faults", "src/worker/a.cpp", 'SPACE_FAULT("hostd.create.disk");\n')
        self.assert_finds("faults", "src/worker/a.cpp", 'SPACE_FAULT("worker.create");\n')
        self.assert_finds("faults", "src/worker/a.cpp", 'SPACE_FAULT("worker.a.b");\nSPACE_FAULT("worker.a.b");\n', 2)

    def test_a_fault_point_that_the_state_table_declares_must_exist(self):
        cmake = CMAKE + "space_folder(domain DEPS space_base)\n"
        files = {"src/domain/state.cpp": 'auto p = "worker.create.disk";\n'}
        self.assertEqual([one.rule for one in self.findings(files, cmake)], ["faults"])
        files["src/worker/a.cpp"] = 'SPACE_FAULT("worker.create.disk");\n'
        self.assertEqual(self.findings(files, cmake), [])


if __name__ == "__main__":
    unittest.main()
