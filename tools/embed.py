#!/usr/bin/env python3
"""Compiles text files into a program.

    embed.py migrations OUTPUT FILE.sql...   defines store::all_migrations()
    embed.py openapi OUTPUT FILE.yaml        defines controlplane::openapi_json(), the file as JSON
    embed.py attacks OUTPUT catalogue.json attack.py   defines cli::selftest::catalogue_text() and attack_program()
    embed.py library OUTPUT FILE.so          defines hostd::guest_memory_library(), the file's bytes
"""
import json
import os
import re
import sys


def literal(text):
    # Compilers promise 65,536 characters a literal; pieces are joined by the compiler.
    pieces = [text[i:i + 12000] for i in range(0, len(text), 12000)] or ['']
    return '\n'.join('R"~embed~(%s)~embed~"' % piece for piece in pieces)


def migrations(paths):
    paths = sorted(paths, key=os.path.basename)
    rows = []
    for expected, path in enumerate(paths, 1):
        name = os.path.basename(path)
        number = re.fullmatch(r'(\d{4})_[a-z0-9_]+\.sql', name)
        if not number or int(number[1]) != expected:
            sys.exit('%s: migrations are named NNNN_what.sql and numbered without gaps; %04d is next' % (path, expected))
        with open(path, encoding='utf-8') as file:
            rows.append('  {%d, "%s",\n%s},' % (expected, name, literal(file.read())))
    return '''#include "store/migrate.hpp"
namespace store {
std::span<Migration const> all_migrations() {
  static constexpr Migration migrations[] = {
%s
  };
  return migrations;
}
}  // namespace store
''' % '\n'.join(rows)


def openapi(paths):
    import yaml
    with open(paths[0], encoding='utf-8') as file:
        document = yaml.safe_load(file)
    return '''#include "controlplane/openapi.hpp"
namespace controlplane {
std::string_view openapi_json() {
  static constexpr std::string_view text =
%s;
  return text;
}
}  // namespace controlplane
''' % literal(json.dumps(document, separators=(',', ':'), ensure_ascii=False))


def attacks(paths):
    texts = [open(path, encoding='utf-8').read() for path in paths]
    return '''#include "cli/selftest_catalogue.hpp"
namespace cli::selftest {
std::string_view catalogue_text() {
  static constexpr std::string_view text =
%s;
  return text;
}
std::string_view attack_program() {
  static constexpr std::string_view text =
%s;
  return text;
}
}  // namespace cli::selftest
''' % (literal(texts[0]), literal(texts[1]))


def library(paths):
    with open(paths[0], 'rb') as file:
        content = file.read()
    lines = [content[i:i + 24] for i in range(0, len(content), 24)]
    return '''#include "hostd/guest_memory.hpp"
namespace hostd {
std::string_view guest_memory_library() {
  static constexpr char bytes[] =
%s;
  return {bytes, sizeof bytes - 1};
}
}  // namespace hostd
''' % '\n'.join('"%s"' % ''.join('\\%03o' % byte for byte in line) for line in lines)


def main():
    what, output, paths = sys.argv[1], sys.argv[2], sys.argv[3:]
    text = {'migrations': migrations, 'openapi': openapi, 'attacks': attacks, 'library': library}[what](paths)
    os.makedirs(os.path.dirname(output), exist_ok=True)
    with open(output, 'w', encoding='utf-8') as file:
        file.write(text)


if __name__ == '__main__':
    main()
