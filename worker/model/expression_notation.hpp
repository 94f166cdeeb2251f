// Rewrites a vocabulary's regular expressions in PCRE2's notation. Makers write them for Oniguruma and for Rust's
// engines, which read the same text a little differently.
#pragma once

#include <string>
#include <string_view>

#include "config/base/error.hpp"

namespace bulkhead::model {

// kUnsupported for what PCRE2 can't say: classes within classes, and `&&`.
Result<std::string> in_pcre2_notation(std::string_view source);

}  // namespace bulkhead::model
