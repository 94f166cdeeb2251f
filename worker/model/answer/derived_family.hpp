// Derives the family of a model whose template is in no row of the table (family.hpp) from how the template shows a
// past call. It renders a conversation with a call of a made-up name; the texts around the name and the arguments are
// the family's marks. So a template that writes <call>{"fn": N, "args": {...}}</call> needs no row.
//
// It can derive calls that are a JSON object, alone or in a list, or a name followed by a JSON object or by a pair of
// tags for each argument, or calls in Python's notation, each between texts of any kind, with a section around several
// calls; and the marks around reasoning and around what is said. Everything else stays content.
#pragma once

#include <optional>

#include "worker/model/answer/family.hpp"
#include "worker/model/template/chat.hpp"

namespace bulkhead::model::answer {

// Returns the table's family of the template. If the table has none, or one that writes other tags than the template,
// it returns what derive_family() returns; if that is nothing, what family_of_template() returns. The family lives as
// long as the process.
const Family& family_of_chat(const jinja::Chat& chat);

// Returns nothing if the template shows nothing of these in a form that can be derived. `known` is what the template's
// text shows; its marks of reasoning and of what is said are kept if it has any.
std::optional<Family> derive_family(const jinja::Chat& chat, const Family& known);

}  // namespace bulkhead::model::answer
