#!/usr/bin/env python3
"""Every module of SPIR-V is valid for Vulkan 1.2. Usage: check_spirv.py FILE... Exit code 77: spirv-val (Debian package spirv-tools) is
not here."""
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor


def fault(path):
    done = subprocess.run(['spirv-val', '--target-env', 'vulkan1.2', path], capture_output=True, text=True, check=False)
    return f'{path}: {done.stdout}{done.stderr}' if done.returncode else None


def main():
    files = sys.argv[1:]
    if not shutil.which('spirv-val'):
        print('spirv-val is not here (Debian package spirv-tools)')
        return 77
    if not files:
        print('no modules')
        return 1
    with ThreadPoolExecutor(2) as pool:
        faults = [f for f in pool.map(fault, files) if f]
    print('\n'.join(faults) if faults else f'{len(files)} modules are valid')
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
