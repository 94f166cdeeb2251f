// Fills in what a template reads of tools and OpenAI's clients may leave out. Without it such a tool makes the whole
// request fail.
#include "worker/model/template/adapt.hpp"

namespace bulkhead::jinja {
void fill_tools(Run& run, const Value* tools, const Adaptations& needed) {
  const List* offered = tools == nullptr ? nullptr : tools->as_list();
  for (std::size_t i = 0; offered != nullptr && i < offered->items.size(); ++i) {
    Dict* tool = offered->items[i].as_dict();
    Value* inner = tool == nullptr ? nullptr : tool->get("function");
    Dict* function = inner == nullptr ? tool : inner->as_dict();
    if (function == nullptr) continue;
    const auto lacks = [function](std::string_view name) {
      const Value* value = function->get(name);
      return value == nullptr || value->none();
    };
    if (needed.has(Adaptation::kToolDescriptionAsEmpty) && lacks("description"))
      function->set(plain("description"), Text());
    if (needed.has(Adaptation::kToolParametersAsEmpty) && lacks("parameters")) {
      Dict* object = run.heap().make<Dict>();
      object->set(plain("type"), plain("object"));
      object->set(plain("properties"), run.heap().make<Dict>());
      function->set(plain("parameters"), object);
    }
    const Value* given = function->get("parameters");
    Dict* parameters = given == nullptr ? nullptr : given->as_dict();
    if (needed.has(Adaptation::kToolPropertiesAsEmpty) && parameters != nullptr &&
        parameters->get("properties") == nullptr)
      parameters->set(plain("properties"), run.heap().make<Dict>());
  }
}

}  // namespace bulkhead::jinja
