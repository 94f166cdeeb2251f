#include "bench/constrain_calls.hpp"

#include <utility>

#include <nlohmann/json.hpp>

namespace bulkhead::bench {
namespace {

using Json = nlohmann::ordered_json;

std::string name_of(int tool) {
  return "workspace_tool_" + std::to_string(tool);
}

constexpr const char* kCode = R"(#include <vector>

// Returns the sum, or -1 if `values` is empty.
template <typename T>
T sum_of(const std::vector<T>& values) {
	if (values.empty()) return T{-1};
	T sum{};
	for (const auto& value : values) sum += value;  // "<" and ">" stand in the text, too
	return sum;
}

int main() { return sum_of<int>({1, 2, 3}) == 6 && (1 << 3) > 2 ? 0 : 1; })";

constexpr const char* kProse =
    "Die Datei wird hier ganz ersetzt: <b>keine</b> Zeile bleibt, auch nicht die mit \"q\" und 'r' "
    "— "
    "naïve Zählungen (≤ 3 %) eingeschlossen.\n\n1. First, read https://example.org/a?b=c&d=<e>.\n"
    "2. 然后检查所有的文件，再写结果。\n3. Затем проверьте ещё раз: x < y || y >= z "
    "🙂.\n\n\tThe "
    "end...  </div>\n";

constexpr const char* kPage = R"(<!doctype html>
<html lang="en"><head><title>A page</title><style>p > a { color: #1f6feb; }</style></head>
<body class="wide"><p>See <a href="/docs/index.html">the docs</a>.</p>
<script>for (let i = 0; i < 10; i++) { if (i<5 && i>2) console.log(`${i} of <10>`); }</script>
<select><option value="1">one</option></select><pre>
  def f(a: list[int]) -> dict[str, int]:
      return {str(x): x ** 2 for x in a if x % 2 == 0}
</pre></body></html>)";

}  // namespace

std::string tagged_tools(int count) {
  Json tools = Json::array();
  for (int i = 0; i < count; ++i) {
    const Json text = {{"type", "string"}};
    const Json properties = {
        {"path", text},
        {"content", text},
        {"line", {{"type", "integer"}, {"minimum", 1}}},
        {"factor", {{"type", "number"}}},
        {"recursive", {{"type", "boolean"}}},
        {"mode", {{"enum", {"replace", "append", "prepend", "delete"}}}},
        {"note", {{"type", {"string", "null"}}}},
        {"tags", {{"type", "array"}, {"items", text}}},
        {"options",
         {{"type", "object"},
          {"properties",
           {{"encoding", text}, {"depth", {{"type", "integer"}}}, {"keep", {{"type", "boolean"}}}}},
          {"required", {"encoding"}},
          {"additionalProperties", false}}},
    };
    tools.push_back({{"type", "function"},
                     {"function",
                      {{"name", name_of(i)},
                       {"parameters",
                        {{"type", "object"},
                         {"properties", properties},
                         {"required", {"path"}},
                         {"additionalProperties", false}}}}}});
  }
  return tools.dump();
}

bool has_tagged_answers(const model::answer::Calls& calls) {
  return calls.syntax == model::answer::CallSyntax::kTagged && calls.tags.type_end.empty() &&
         !calls.tags.elements;
}

std::vector<std::string> tagged_answers(const model::answer::Calls& calls) {
  using Arguments = std::vector<std::pair<std::string, std::string>>;
  const model::answer::Tags& tags = calls.tags;
  const std::string line = tags.strip_newlines ? "\n" : "";
  const auto call = [&](int tool, const Arguments& arguments) {
    std::string out = calls.opens[0] + name_of(tool);
    if (!calls.name_ends.empty()) out += calls.name_ends[0];
    for (const auto& [key, value] : arguments) {
      out += "\n" + tags.param_open + key + tags.key_close;
      if (!tags.value_open.empty()) out += "\n" + tags.value_open;
      out += line + value + line + tags.value_close;
    }
    return out + "\n" + tags.call_close;
  };
  const Arguments whole = {{"path", "src/sum of all.cpp"},
                           {"content", kCode},
                           {"line", "12"},
                           {"factor", "-0.25"},
                           {"recursive", "true"},
                           {"mode", "replace"},
                           {"note", "as it was asked for; see <#17>"},
                           {"tags", R"(["a", "b c", "<d>"])"},
                           {"options", R"({"encoding": "utf-8", "depth": 3, "keep": false})"}};
  const Arguments prose = {{"path", "notes/März.txt"}, {"content", kProse}, {"note", "null"}};
  const Arguments page = {{"path", "/srv/www/index.html"}, {"content", kPage}, {"mode", "append"}};
  return {call(0, whole) + "\n" + call(1, prose) + "\n" + call(2, page),
          call(20, page) + "\n" + call(0, prose), call(3, prose) + "\n" + call(3, whole)};
}

}  // namespace bulkhead::bench
