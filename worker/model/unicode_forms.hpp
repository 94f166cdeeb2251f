// The forms of characters that BERT's normalisation of text needs, one character at a time.
#pragma once

#include <string>

namespace bulkhead::model {

// General categories Cc, Cf, Co and Cs. A code that has no character yet is not one of them.
bool is_control(char32_t code);

// Appends the character's canonical decomposition (NFD) without its accents (general category Mn); nothing for an
// accent itself.
void append_without_accents(std::u32string& out, char32_t code);

// Appends the character in lower case, whatever stands beside it: a capital sigma always becomes U+03C3.
void append_lower_case(std::u32string& out, char32_t code);

}  // namespace bulkhead::model
