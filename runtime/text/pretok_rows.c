/* The table of pre-tokenizers: see pretok.h.
 *
 * The expressions are those of the models' own tokenizers (their tokenizer.json), so that the pieces are the same for every text. What
 * differs in writing:
 * - \s is written out: PCRE2's has one character more (U+180E) than the White_Space property, which those use.
 * - Every repetition of a single class is possessive where no other match can follow from giving back, so that nothing is tried twice:
 *   time stays linear, and the matcher needs no stack.
 * - "\s+$" may begin at the first character of its run only, else each character of a run inside a text would look for its end. */
#include <string.h>

#include "runtime/text/pretok.h"

#define SPACE "\\x09-\\x0D\\x{85}\\p{Z}"
#define END_OF_SPACES "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]++"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}++| ?\\p{N}++| ?[^" SPACE "\\p{L}\\p{N}]++|" END_OF_SPACES
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES "[" SPACE "]*[\\r\\n]+"

// The family of cl100k: digits is what a number is cut into.
#define LLAMA3(digits)                                                                                                                     \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}++|" digits "| ?[^" SPACE "\\p{L}\\p{N}]++[\\r\\n]*+|" LINES "|" END_OF_SPACES

// The family of o200k, in which a word begins anew where lower case becomes upper case; suffix is what may follow a word. The two parts
// of a word share classes, so the first one must be able to give back; it does so once per match, from its end.
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K(suffix, digits)                                                                                                              \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "++" suffix "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "++" LOWER "*+" suffix "|" digits "| ?[^" SPACE   \
    "\\p{L}\\p{N}]++[\\r\\n/]*+|" LINES "|" END_OF_SPACES

// Letters with case, as DeepSeek LLM lists them.
#define CASED                                                                                                                              \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}"                                        \
    "\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}"                         \
    "\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}"                             \
    "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}"                                      \
    "\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}"                                      \
    "\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}"                              \
    "\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}"                             \
    "\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}"                              \
    "\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}"                                        \
    "\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}"                              \
    "\\x{2CEB}-\\x{2CEE}\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"                                       \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}"                                      \
    "\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}"                                \
    "\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"
// As DeepSeek writes it: the second range takes in much more than Chinese, Japanese and Korean.
#define CJK "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]++"

// Names are unique: their order means nothing.
static const struct rn_pretok_row rows[] = {
    {.names = {"gpt-2", "phi-2"}, .passes = {GPT2}},
    {.names = {"mpt", "olmo"}, .passes = {GPT2}, .nfc = true},
    {.names = {"smollm", "starcoder", "refact"}, .passes = {"\\p{N}", GPT2}},
    {.names = {"command-r"}, .passes = {"\\p{N}", GPT2}, .nfc = true},
    {.names = {"llama-bpe", "llama-v3", "llama3", "falcon3", "falcon-h1", "pixtral", "lfm2"},
     .passes = {LLAMA3("\\p{N}{1,3}+")},
     .ignore_merges = true,
     .add_bos = true},
    {.names = {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, .passes = {LLAMA3("\\p{N}{1,3}+")}},
    {.names = {"qwen2", "deepseek-r1-qwen"}, .passes = {LLAMA3("\\p{N}")}, .nfc = true},
    {.names = {"stablelm2"}, .passes = {LLAMA3("\\p{N}")}},
    {.names = {"qwen35"},
     .passes = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]++|\\p{N}| ?[^" SPACE "\\p{L}\\p{M}\\p{N}]++[\\r\\n]*+|" LINES
                            "|" END_OF_SPACES},
     .nfc = true},
    {.names = {"tekken"}, .passes = {O200K("", "\\p{N}")}, .ignore_merges = true, .add_bos = true},
    {.names = {"gpt-4o", "llama4"}, .passes = {O200K(CONTRACTION "?", "\\p{N}{1,3}+")}},
    {.names = {"deepseek-llm"},
     .passes = {"[\\r\\n]", "[" SPACE "]?[" CASED "]++",
                "[" SPACE "]?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]++",
                "(?<![" SPACE "])[" SPACE "]++\\z", CJK, "\\p{N}"}},
    {.names = {"deepseek-coder"}, .passes = {"[\\r\\n]", "[" SPACE "]?\\p{L}++", "[" SPACE "]?\\p{P}++", CJK, "\\p{N}"}},
    {.names = {"deepseek-v3"},
     .passes = {"\\p{N}{1,3}+", "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]++",
                "[!-/:-@\\[-`{-~][A-Za-z]++|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]++| ?[\\p{P}\\p{S}]++[\\r\\n]*+|" LINES
                "|" END_OF_SPACES}},
    // Falcon looks for numbers only after it has written the bytes in GPT-2's alphabet, where some bytes above ASCII are numbers too.
    {.names = {"falcon"}, .passes = {"[\\p{P}$+<=>^~|`]++", GPT2, "[0-9\\xB2\\xB3\\xB9\\xBC-\\xBE]++", "[0-9][0-9][0-9]"}, .byte_pass = 2},
    // Files from before tokenizer.ggml.pre existed.
    {.names = {"default"}, .passes = {"[\\p{P}$+<=>^~|]++", GPT2, "\\p{N}++", "[0-9][0-9][0-9]"}},
};

const struct rn_pretok_row *rn_pretok_row(size_t i)
{
    return i < sizeof(rows) / sizeof(rows[0]) ? &rows[i] : NULL;
}

const struct rn_pretok_row *rn_pretok_find(const char *name, size_t len)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (size_t n = 0; n < RN_PRETOK_MAX_NAMES && rows[i].names[n] != NULL; n++) {
            if (strlen(rows[i].names[n]) == len && memcmp(rows[i].names[n], name, len) == 0) {
                return &rows[i];
            }
        }
    }
    return NULL;
}
