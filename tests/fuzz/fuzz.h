/* Fuzz targets. Each target is one file with libFuzzer's entry point; driver.c runs it where there is no libFuzzer (gcc).
 *
 * With clang a target needs nothing else: clang -fsanitize=fuzzer,address,undefined fuzz_x.c fuzz_check.c and the libraries; the words and
 * seeds below are then not used. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* One input; must survive any bytes. Always 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* Pieces of the target's language that mutations insert, up to NULL. */
extern const char *const fuzz_words[];
/* Hands inputs to `add`, which copies them. */
void fuzz_seeds(void (*add)(const void *data, size_t len));

/* A promise that a target checks by itself: ends the program when it is broken. */
#define FUZZ_CHECK(condition) ((condition) ? (void)0 : fuzz_broken(#condition, __FILE__, __LINE__))
_Noreturn void fuzz_broken(const char *condition, const char *file, int line);
