// The front ends that need little code, and the checking of texts.
#include "worker/constrain/constraint.hpp"

#include "worker/constrain/automaton.hpp"
#include "worker/constrain/regex.hpp"

namespace bulkhead::constrain {

Result<Compiled> compile_schema(std::string_view schema, Strictness strictness) {
  auto grammar = std::make_shared<Grammar>();
  Compiled compiled;
  BULKHEAD_TRY(grammar->root, add_schema(*grammar, schema, strictness, compiled.warnings));
  const Status finished =
      grammar->finish("no value fits it: its keywords contradict each other");
  if (!finished.ok()) return finished.error().within("the schema");
  compiled.grammar = std::move(grammar);
  return compiled;
}

Result<Compiled> compile_json_object() {
  return compile_schema(R"({"type": "object"})", Strictness::kStrict);
}

Result<Compiled> compile_regex(std::string_view expression) {
  Result<DfaPtr> automaton = regex_automaton(expression, Match::kWhole);
  if (!automaton.ok()) return automaton.error().within("\"regex\"");
  auto grammar = std::make_shared<Grammar>();
  grammar->root = grammar->add_rule();
  const NodeId end = grammar->add(Node{});
  grammar->rules[grammar->root] = grammar->leaf(NodeKind::kText, *automaton, end);
  const Status finished = grammar->finish();
  if (!finished.ok()) return finished.error().within("\"regex\"");
  return Compiled{std::move(grammar), {}};
}

Checked check_text(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Automaton automaton(grammar);
  ConfigId at = automaton.start();
  for (std::size_t i = 0; i < text.size(); ++i) {
    at = automaton.step(at, static_cast<unsigned char>(text[i]));
    if (at == kNowhere) return {false, i};
  }
  return {automaton.accepting(at), text.size()};
}

}  // namespace bulkhead::constrain
