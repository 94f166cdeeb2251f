// Reads and writes JSON without changing its integers. nlohmann's parser turns integers beyond 64 bits into doubles,
// which rounds most of them: a text that the parser reads and writes again would hold other numbers.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace bulkhead {

// Returns whether a JSON number is an integer that the parser would round.
bool is_rounded_integer(std::string_view number);

// Parses text as ordered_json::parse() does, and discards the value of invalid text. An integer that would be rounded
// becomes a binary value of its digits; no other value is binary.
nlohmann::ordered_json parse_exact(std::string_view text);

// Writes such a value. Its strings must be UTF-8, as those of parsed texts are.
std::string dump_exact(const nlohmann::ordered_json& value);

// Returns the digits of an integer that would have been rounded; empty for every other value.
std::string_view digits_of(const nlohmann::ordered_json& value);

}  // namespace bulkhead
