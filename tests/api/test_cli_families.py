"""Tiny random models with float weights: exact to what Hugging Face transformers computes."""
import pytest

from cli_kit import DATA, THREADS, dumped, ids_file, kl, load, log_sum_exp, runnel


@pytest.mark.parametrize('mask', [[], ['--cpu-mask', 'avx512vnni,avxvnni'], ['--cpu-mask', 'avx512vnni,avxvnni,avx2']])
@pytest.mark.parametrize('name', ['llama', 'llama_bias', 'mistral'])
def test_family_is_exact(tmp_path, name, mask):
    reference = load(f'families/{name}.json')
    dump = tmp_path / 'rows'
    runnel('logits', '-m', DATA / 'families' / f'{name}.gguf', '--ids-file', ids_file(tmp_path, reference['ids']), '--kv', 'f16', '--top', 0, '--dump', dump,
           *THREADS, *mask)
    rows = list(dumped(dump, 512))
    assert len(rows) == len(reference['ids']) == 96
    divergence = [kl(top['ids'], top['logsumexp'], row, log_sum_exp(row)) for top, row in zip(reference['top'], rows)]
    mean = sum(divergence) / len(divergence)
    worst = max(abs(a - b) for a, b in zip(rows[-1], reference['logits_last']))
    print(f'{name}: mean KL {mean:.2e}, largest difference of the last row {worst:.2e}')
    assert mean <= 1e-5
    assert all(max(range(512), key=row.__getitem__) == top['ids'][0][0] for top, row in zip(reference['top'], rows) if top['ids'][0][1] - top['ids'][1][1] > 0.05)


@pytest.mark.parametrize('name', ['llama', 'llama_bias', 'mistral'])
def test_steps_threads_and_kernels_change_no_bit(tmp_path, name):
    ids = ids_file(tmp_path, load(f'families/{name}.json')['ids'])
    seen = set()
    for chunk, threads, mask in (128, 1, 'avx512vnni,avxvnni,avx2'), (128, 2, ''), (1, 1, 'avx512vnni,avxvnni'), (7, 2, ''), (33, 1, 'avx512vnni'):
        dump = tmp_path / 'rows'
        runnel('logits', '-m', DATA / 'families' / f'{name}.gguf', '--ids-file', ids, '--top', 0, '--dump', dump, '--chunk', chunk, '--threads', threads,
               *(['--cpu-mask', mask] if mask else []), '--window', 40, '--evict', 'token')
        seen.add(dump.read_bytes())
    assert len(seen) == 1
