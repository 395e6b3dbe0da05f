#!/usr/bin/env python3
"""Runs a program under the Khronos validation layer; fails if the program does, or if the layer has anything to say.

usage: validated.py [--gpu-assisted] [--expect WORDS [--optional]] [--if-present | --off] PROGRAM [ARGUMENT...]
  --gpu-assisted  instruments the shaders too (much slower): accesses outside of any buffer
                  The layer of Debian 12 knows the buffers that were there when a command buffer was recorded: where recordings are replayed
                  over newer KV pages (the engine, sequences after the first) it reports those pages, and answers are wrong.
  --expect WORDS  the other way round: fails unless a message has these words in it, large or small letters
  --if-present    without the layer the program runs alone; otherwise that is exit code 77
  --optional      with --expect: without such a message the exit code is 77
  --off           the program runs alone
A test of the Vulkan backend runs in parts with RUNNEL_TEST_CASES=PATTERN.
Core and synchronisation validation are always on. Warnings and hints about speed count as messages."""
import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

LAYER = 'VK_LAYER_KHRONOS_validation'
MANIFEST = 'VkLayer_khronos_validation.json'
SHOWN = 4000 # characters of the messages

SETTINGS = '''khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn,perf
khronos_validation.log_filename = {log}
khronos_validation.duplicate_message_limit = 3
khronos_validation.enables = {enables}
khronos_validation.validate_sync = true
khronos_validation.gpuav_enable = {assisted}
''' # the last two are the newer names of what `enables` says
START = re.compile(r'^(?=Validation |\S[^\n]*\((?:ERROR|WARN|PERF|INFO)[^\n]*\): )', re.MULTILINE) # of a message, in the layers of 1.3 and 1.4
ABOUT_ITSELF = re.compile(r'VALIDATION-SETTINGS|WARNING-GPU-Assisted-Validation|WARNING-Setting') # what the layer turns on for its own sake
SYNCHRONISATION = 'VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT'
GPU_ASSISTED = ['VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_EXT', 'VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_RESERVE_BINDING_SLOT_EXT']


def is_here():
    """Where the loader looks for explicit layers (Vulkan loader, "Layer Discovery")."""
    roots = [*os.environ.get('VK_LAYER_PATH', '').split(':'), *os.environ.get('VK_ADD_LAYER_PATH', '').split(':')]
    data = ['/etc', '/usr/local/etc', os.environ.get('XDG_DATA_HOME') or os.path.expanduser('~/.local/share'),
            *(os.environ.get('XDG_DATA_DIRS') or '/usr/local/share:/usr/share').split(':')]
    roots += [f'{d}/vulkan/explicit_layer.d' for d in data]
    return any(root and (Path(root) / MANIFEST).exists() for root in roots)


def about_us(log):
    return ''.join(message for message in START.split(log) if not ABOUT_ITSELF.search(message.split('\n')[0]))


def run(arguments):
    with tempfile.TemporaryDirectory(prefix='runnel-validation-') as folder:
        log, settings = Path(folder) / 'messages.txt', Path(folder) / 'vk_layer_settings.txt'
        enables = [SYNCHRONISATION] + (GPU_ASSISTED if arguments.gpu_assisted else [])
        settings.write_text(SETTINGS.format(log=log, enables=','.join(enables), assisted=str(arguments.gpu_assisted).lower()), encoding='utf-8')
        layers = ':'.join(filter(None, [LAYER, os.environ.get('VK_INSTANCE_LAYERS')]))
        code = subprocess.run([arguments.program, *arguments.arguments], check=False,
                              env=os.environ | {'VK_INSTANCE_LAYERS': layers, 'VK_LAYER_SETTINGS_PATH': str(settings)}).returncode
        # The layer opens its log with the first instance.
        return code, about_us(log.read_text(encoding='utf-8', errors='replace')) if log.exists() else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--gpu-assisted', action='store_true')
    parser.add_argument('--expect')
    parser.add_argument('--if-present', action='store_true')
    parser.add_argument('--optional', action='store_true')
    parser.add_argument('--off', action='store_true')
    parser.add_argument('program')
    parser.add_argument('arguments', nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.off or not is_here():
        if arguments.off or arguments.if_present:
            os.execv(arguments.program, [arguments.program, *arguments.arguments])
        print('the validation layer is not here (Debian package vulkan-validationlayers)')
        return 77
    code, messages = run(arguments)
    if code != 0:
        return code if code > 0 else 128 - code
    if messages is None:
        print('# the validation layer was not loaded: no Vulkan instance was made')
        return 1 if arguments.expect else 0
    if arguments.expect:
        print(messages[:SHOWN])
        return 0 if arguments.expect.lower() in messages.lower() else 77 if arguments.optional else 1
    if messages:
        print('# the validation layer says:', messages[:SHOWN], sep='\n', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
