// Text of others (clients, workers, files) on its way to a terminal or a log: nothing in it may start a
// line of its own or speak to the terminal.
#pragma once

#include <string>
#include <string_view>

namespace bulkhead {

// How a byte that is no plain text is written.
enum class Escapes {
  kText,  // \x1b, \n; a tab stays
  kJson,  // \u001b, \n, \t, \", \\: what may stand in a JSON string
};

// Replaces control characters (C0, DEL, and C1, which terminals obey as well: U+009B begins a
// sequence as ESC [ does) and bytes that are no UTF-8 by escapes. Never fails.
std::string cleaned(std::string_view text, Escapes escapes = Escapes::kText);

}  // namespace bulkhead
