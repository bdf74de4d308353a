#include <doctest/doctest.h>

#include "policies/base/text.h"

using namespace equipoise;

TEST_CASE("well-formed UTF-8 is told from other bytes") {
  for (const char* good : {"", "abc", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"})
    CHECK(is_utf8(good));
  // A lone continuation, a cut sequence, an overlong slash, a surrogate, beyond U+10FFFF, a byte that is
  // never used.
  for (const char* bad : {"\x80", "\xc3", "\xe2\x82", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                          "\xf4\x90\x80\x80", "\xff", "\xc3(", "\xf5\x80\x80\x80"})
    CHECK_FALSE(is_utf8(bad));
  CHECK(utf8_prefix("ab\xff"
                    "cd") == 2);
}

TEST_CASE("what could steer a terminal is shown and not sent") {
  CHECK(printable("plain, caf\xc3\xa9 \xe2\x82\xac") == "plain, caf\xc3\xa9 \xe2\x82\xac");
  CHECK(printable("\x1b[31mred\x07") == "\\x1b[31mred\\x07");
  CHECK(printable("a\nb\tc\rd\x7f") == "a\\nb\\tc\\rd\\x7f");
  CHECK(printable("\xc2\x9b"
                  "2J") == "\\u009b2J");  // CSI as one character
  CHECK(printable("\xe2\x80\xae"
                  "cba") == "\\u202ecba");  // right-to-left override
  CHECK(printable("\xff\xc3") == "\\xff\\xc3");
  CHECK(printable_lines("a\n\tb\x1b") == "a\n\tb\\x1b");
}
