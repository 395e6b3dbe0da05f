#!/usr/bin/env python3
"""Compiles each header alone: a header brings along what it needs. Usage: check_headers.py ROOT BUILD

The command is that of a source file in the header's folder (compile_commands.json), so that a kernel's private header is compiled for
its instruction set. A folder of which this build compiles nothing (another processor's instruction set) is left out. Templates
(*_tmpl.h) are included by several files for different parameters and are not headers in this sense."""
import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HEADERS_OF_FILES = ('runtime', 'session', 'daemon', 'tests')


def commands_by_folder(root, build):
    """Folder -> command of one of its files, without the file and its outputs."""
    commands = {}
    for entry in json.loads((build / 'compile_commands.json').read_text(encoding='utf-8')):
        source = Path(os.path.normpath(os.path.join(entry['directory'], entry['file'])))
        if source.suffix != '.c' or root not in source.parents:
            continue
        words = shlex.split(entry['command'])
        kept, skip = [], 0
        for word in words:
            if skip:
                skip -= 1
            elif word in ('-o', '-MF', '-MQ', '-MT'):
                skip = 1
            elif word not in ('-c', '-MD', '-MMD', entry['file']) and not word.startswith('-fsanitize'):
                kept.append(word)
        commands.setdefault(source.parent.relative_to(root).as_posix(), (kept, entry['directory']))
    return commands


def command_for(commands, folder):
    """That of the folder itself or of the nearest one above it; any for a folder of headers alone."""
    while folder not in commands and '/' in folder:
        folder = folder.rsplit('/', 1)[0]
    return commands.get(folder) or next(iter(commands.values()))


def is_built(commands, root, header):
    folder = os.path.dirname(header)
    return folder in commands or not any((root / folder).glob('*.c'))


def compile_alone(commands, header):
    words, directory = command_for(commands, os.path.dirname(header))
    done = subprocess.run(words + ['-Werror', '-fdiagnostics-color=never', '-fsyntax-only', '-x', 'c', '-'], cwd=directory, input=f'#include "{header}"\n',
                          capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f'{header}: does not compile alone\n{done.stderr}'


def main():
    root, build = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    headers = [p.relative_to(root).as_posix() for top in HEADERS_OF_FILES for p in sorted((root / top).rglob('*.h'))]
    headers = [h for h in headers if not h.endswith('_tmpl.h')]
    commands = commands_by_folder(root, build)
    headers = [h for h in headers if is_built(commands, root, h)]
    if not headers or not commands:
        print(f'{len(headers)} headers below {root}, {len(commands)} folders in {build}/compile_commands.json')
        return 1
    with ThreadPoolExecutor(2) as pool:
        faults = [fault for fault in pool.map(lambda h: compile_alone(commands, h), headers) if fault]
    print('\n'.join(faults) if faults else f'{len(headers)} headers compile alone')
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
