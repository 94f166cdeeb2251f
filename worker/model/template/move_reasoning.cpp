// Moves an assistant's reasoning to where the template looks for it.
#include "worker/model/template/adapt.hpp"

namespace bulkhead::jinja {

void reasoning_by_one_name(Dict& message) {
  const Value* known = message.get("reasoning_content");
  const Value* other = message.get("reasoning");
  if (other == nullptr || other->as_text() == nullptr || other->as_text()->empty()) return;
  if (known == nullptr || known->none()) message.set(plain("reasoning_content"), Value(*other));
}

void move_reasoning(Run& run, Dict& message, Adaptation how) {
  const Value* reasoning = message.get("reasoning_content");
  if (reasoning == nullptr) return;
  if (reasoning->as_text() == nullptr || reasoning->as_text()->empty()) return;
  const Value text = *message.erase(plain("reasoning_content"));
  if (how == Adaptation::kReasoningAsThinking) {
    message.set(plain("thinking"), text);
    return;
  }
  List* parts = run.heap().list();
  parts->items.push_back(typed_part(run, "thinking", text));
  Value* content = message.get("content");
  if (content != nullptr && content->as_text() != nullptr && !content->as_text()->empty())
    parts->items.push_back(typed_part(run, "text", *content));
  if (content != nullptr && content->as_list() != nullptr)
    parts->items.insert(parts->items.end(), content->as_list()->items.begin(),
                        content->as_list()->items.end());
  message.set(plain("content"), parts);
}

void content_into_thinking(Dict& message) {
  const Value* calls = message.get("tool_calls");
  Value* content = message.get("content");
  Value* thinking = message.get("thinking");
  if (calls == nullptr || calls->as_list() == nullptr || calls->as_list()->items.empty() ||
      content == nullptr || thinking == nullptr)
    return;
  const Text* said = content->as_text();
  const Text* thought = thinking->as_text();
  if (said == nullptr || thought == nullptr || said->empty() || thought->empty()) return;
  TextBuilder joined;
  joined.append(*thought);
  joined.append("\n\n", Origin::kUser);
  joined.append(*said);
  *thinking = joined.take();
  *content = Text();
}

}  // namespace bulkhead::jinja
