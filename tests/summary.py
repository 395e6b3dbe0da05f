#!/usr/bin/env python3
"""Adds up what the test runners left behind and prints it as the last line of ./check. Usage: summary.py RESULT...

RESULT is `NAME=testlog.json` (meson; the tests run with CMOCKA_MESSAGE_OUTPUT=TAP), `NAME=results.xml` (pytest's JUnit file) or
`NAME=skip:REASON` for a part that could not run. One test case counts as one, in each build it runs in; a test program without cases
of its own counts as one. A program that ends badly without a failed case is one failure, and so is a result file that is missing.
Exit code 1: something failed, or nothing passed."""
import json
import re
import sys
import xml.etree.ElementTree as ElementTree

CASE = re.compile(r'^(not )?ok \d+(?: - | )?(.*)$')


class Total:
    def __init__(self):
        self.passed = self.failed = 0
        self.failures, self.skips = [], []

    def fail(self, where):
        self.failed += 1
        self.failures.append(where)

    def skip(self, where, reason):
        self.skips.append((where, reason or 'no reason given'))


def last_line(lines):
    """What a test said last is why it skipped."""
    return next((line.strip() for line in reversed(lines) if line.strip() and not line.startswith(('#', '1..'))), '')


def add_cases(total, name, lines):
    """TAP of one program: the number of cases, and of failed ones."""
    n_cases = n_failed = 0
    said = []
    for line in lines:
        case = CASE.match(line)
        if not case:
            said.append(line)
            continue
        n_cases += 1
        title = case[2].replace('# SKIP', '').strip(' -')
        if '# SKIP' in line:
            total.skip(f'{name}/{title}', last_line(said))
        elif case[1]:
            n_failed += 1
            total.fail(f'{name}/{title}')
        else:
            total.passed += 1
        said = []
    return n_cases, n_failed


def add_meson(total, part, path):
    with open(path, encoding='utf-8') as f:
        for line in f:
            test = json.loads(line)
            name = f'{part}: {test["name"]}'
            # Messages and results share standard output; standard error may carry reasons too.
            lines = test.get('stderr', '').splitlines() + test.get('stdout', '').splitlines()
            n_cases, n_failed = add_cases(total, name, lines)
            if test['result'] in ('OK', 'EXPECTEDFAIL'):
                total.passed += n_cases == 0
            elif test['result'] == 'SKIP':
                if n_cases == 0:
                    total.skip(name, last_line(lines))
            elif n_failed == 0:
                total.fail(f'{name} ({test["result"].lower()})')


def add_junit(total, part, path):
    for case in ElementTree.parse(path).getroot().iter('testcase'):
        name = f'{part}: {case.get("classname", "").split(".")[-1]}/{case.get("name")}'
        skipped = case.find('skipped')
        if case.find('failure') is not None or case.find('error') is not None:
            total.fail(name)
        elif skipped is not None:
            total.skip(name, skipped.get('message'))
        else:
            total.passed += 1


def add(total, argument):
    part, what = argument.split('=', 1)
    if what.startswith('skip:'):
        total.skip(part, what[len('skip:'):])
        return
    try:
        (add_meson if what.endswith('.json') else add_junit)(total, part, what)
    except (OSError, ValueError, KeyError, ElementTree.ParseError) as e:
        total.fail(f'{part}: no results ({e})')


def print_skips(skips):
    """One line per reason, with the tests it concerns."""
    by_reason = {}
    for where, reason in skips:
        by_reason.setdefault(reason, []).append(where)
    for reason, places in by_reason.items():
        shown = ', '.join(places[:4]) + (f' and {len(places) - 4} more' if len(places) > 4 else '')
        print(f'skipped: {reason} [{shown}]')


def main():
    total = Total()
    for argument in sys.argv[1:]:
        add(total, argument)
    print_skips(total.skips)
    for where in total.failures:
        print(f'failed: {where}')
    print(f'{total.passed} passed, {total.failed} failed, {len(total.skips)} skipped')
    return 1 if total.failed or not total.passed else 0


if __name__ == '__main__':
    sys.exit(main())
