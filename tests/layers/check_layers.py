#!/usr/bin/env python3
"""Fails on an include that breaks the rules of README, "Layers". Usage: check_layers.py ROOT

L1  Includes go downward: never to a higher layer, nor to another folder of the same rank. A folder may include its own face, the header
    of its name beside it (runtime/text/ implements runtime/text.h).
L2  Outside runtime/ only runtime/*.h and runtime/base/*.h exist.
L3  *_internal.h is private to its folder (and tests).
L4  Includes of ours are written from the root.
L5  Order: own header, then <libc and libraries>, then "ours"; sorted within each block between blank lines. A file's own header is one of
    its folder that stands first. Only the run of includes at the top is looked at, up to the first conditional.
L6  Third-party headers, and what C shares with the shaders, are confined to the files that wrap them.
L7  Headers say #pragma once.
"""
import re
import sys
from pathlib import Path

RANK = {'shaders': 0, 'runtime/base': 0, 'runtime/tensor': 1, 'runtime/model': 2, 'runtime/cpu': 3, 'runtime/vulkan': 3, 'runtime/text': 3,
        'runtime': 4, 'session': 5, 'daemon': 6, 'tests': 7}

# First part of a header's name -> where it may be included.
CONFINED = {'libwebsockets': 'daemon/net_', 'lws': 'daemon/net_', 'sqlite3': 'session/store_', 'vulkan/': 'runtime/vulkan/', 'shaders/': 'runtime/vulkan/',
            'pcre2': 'runtime/text/', 'utf8proc': 'runtime/text/', 'histedit': 'daemon/cli/', 'editline/': 'daemon/cli/',
            'cmocka': 'tests/'}

GENERATED = re.compile(r'(\.spv\.h|^config\.h)$')
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def folder_of(path):
    parts = Path(path).parts
    two = '/'.join(parts[:2])
    return two if two in RANK else parts[0]


def faults_of_one(rel, me, quote, name):
    """L1, L2, L3, L4, L6 for one include line."""
    for library, place in CONFINED.items():
        if name.startswith(library) and not rel.startswith((place, 'tests/')):
            yield f'<{name}> belongs in {place}* only'
    if quote == '<' or GENERATED.search(name):
        return
    other = folder_of(name)
    if other not in RANK or '/' not in name:
        yield f'write the include from the root: "{name}"'
        return
    if RANK[other] > RANK[me] and name != f'{me}.h':
        yield f'{me} may not include {name} (higher layer)'
    if RANK[other] == RANK[me] and other != me:
        yield f'{me} may not include {name} (folders of one rank do not know each other)'
    if other.startswith('runtime/') and other != 'runtime/base' and not me.startswith(('runtime', 'tests')):
        yield f'{me} may not include {name} (inside the runtime; runtime/*.h is for the layers above)'
    if name.endswith('_internal.h') and me not in (other, 'tests'):
        yield f'{me} may not include {name} (private to {other})'


def faults_of_order(lines):
    """L5 for the includes at the top of a file; the first fault only."""
    kinds, last, block, is_first = '', '', [], True
    for number, line in enumerate(lines, 1):
        found = INCLUDE.match(line)
        if not found:
            if re.match(r'\s*#\s*(if|ifdef|ifndef)\b', line):
                return # conditional includes follow their own order
            block = []
            continue
        quote, name = found.groups()
        if is_first and quote == '"':
            is_first, last = False, name # the own header, or the first of a file that includes only ours
            continue
        is_first = False
        if quote == '<' and '"' in kinds:
            yield number, f'include order: <{name}> after "{last}" (own header, <libc and libraries>, "ours")'
            return
        kinds += quote
        if block and name < block[-1]:
            yield number, f'include order: {name} after {block[-1]} (sorted within a block)'
            return
        block.append(name)
        last = name


def faults_of_file(root, path):
    rel = path.relative_to(root).as_posix()
    me = folder_of(rel)
    if me not in RANK:
        return
    text = path.read_text(encoding='utf-8')
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if found := INCLUDE.match(line):
            for fault in faults_of_one(rel, me, *found.groups()):
                yield f'{rel}:{number}: {fault}'
    for number, fault in faults_of_order(lines):
        yield f'{rel}:{number}: {fault}'
    if rel.endswith('.h') and not re.search(r'^#pragma once$', text, re.MULTILINE) and not rel.endswith('_tmpl.h'):
        yield f'{rel}:1: a header says #pragma once'


def sources(root):
    for top in ('runtime', 'session', 'daemon', 'tests'):
        yield from sorted(p for p in (root / top).rglob('*.[ch]'))


def main():
    root = Path(sys.argv[1])
    files = list(sources(root))
    faults = [fault for path in files for fault in faults_of_file(root, path)]
    print('\n'.join(faults) if faults else f'{len(files)} files keep the rules')
    if not files:
        print(f'no source file below {root}')
    return 1 if faults or not files else 0


if __name__ == '__main__':
    sys.exit(main())
