// How many columns of a terminal a text takes: a character of Chinese takes two, an accent of its own none.
#pragma once

#include <cstddef>
#include <string_view>

namespace bulkhead::cli {

// Returns the columns that UTF-8 text without control characters takes. A byte that is no character counts as one.
std::size_t columns_of(std::string_view text);

// Returns as much of the text's beginning as `columns` columns hold.
std::string_view first_columns(std::string_view text, std::size_t columns);

}  // namespace bulkhead::cli
