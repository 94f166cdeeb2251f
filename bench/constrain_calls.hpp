// Tools, and answers that call them, in the notation of a family whose calls have their arguments between tags.
#pragma once

#include <string>
#include <vector>

#include "worker/model/answer/family.hpp"

namespace bulkhead::bench {

// `count` tools as a request gives them. Their arguments are of the usual kinds: free texts, numbers, booleans, words
// of a list, a text or null, lists and objects.
std::string tagged_tools(int count);
// Returns whether tagged_answers() can write the family's calls: they are in tags, without attributes for types.
bool has_tagged_answers(const model::answer::Calls& calls);
// Answers that call some of the tools. Their texts are prose and code, several hundred characters each.
std::vector<std::string> tagged_answers(const model::answer::Calls& calls);

}  // namespace bulkhead::bench
