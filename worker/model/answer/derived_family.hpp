// The family of a model whose template no row of the table knows (family.hpp): derived from how the template shows a
// past call. A conversation with a call of a made-up name is rendered, and the texts around the name and the arguments
// are the family's marks. So a template that writes <call>{"fn": N, "args": {...}}</call> needs no row.
//
// What is derived: calls that are a JSON object, alone or in a list, or a name and then a JSON object, each between
// texts of any kind, with a section around several; and what stands around reasoning. Anything else stays content.
#pragma once

#include <optional>

#include "worker/model/answer/family.hpp"
#include "worker/model/template/chat.hpp"

namespace bulkhead::model::answer {

// The table's family of the template; else what derive_family() says; else what family_of_template() does. The family
// lives as long as the process.
const Family& family_of_chat(const jinja::Chat& chat);

// Nothing where the template shows neither calls nor reasoning in a form that can be derived. `known`: what the
// template's text says; its reasoning is kept if it has any.
std::optional<Family> derive_family(const jinja::Chat& chat, const Family& known);

}  // namespace bulkhead::model::answer
