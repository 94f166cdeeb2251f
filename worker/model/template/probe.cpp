#include "worker/model/template/probe.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace bulkhead::jinja {
namespace {

// Words that no template contains.
constexpr std::string_view kFirst = "Qf7first";
constexpr std::string_view kSecond = "Qf7second";
constexpr std::string_view kArgument = "Qf7argument";
constexpr std::string_view kReasoning = "Qf7reasoning";
constexpr std::string_view kResult = "Qf7result";

constexpr std::string_view kTool =
    R"([{"type": "function", "function": {"name": "Qf7tool", "description": "Probes.", )"
    R"("parameters": {"type": "object", "properties": {"key": {"type": "string", )"
    R"("description": "A key."}}, "required": ["key"]}}}])";
constexpr std::string_view kArgumentsText = R"("{\"key\": \"Qf7argument\"}")";
constexpr std::string_view kArgumentsObject = R"({"key": "Qf7argument"})";
constexpr std::string_view kArgumentsOfPython = "{'key': 'Qf7argument'}";
constexpr std::string_view kShortId = "abcdef123";
constexpr std::string_view kTinyId = "c1";
constexpr std::string_view kLongId = "call_abcdef_123456";
// How a template shows a call if it writes the call's id in the place of its name, as Kimi K2.5's does. The model
// itself writes functions.NAME:INDEX there.
constexpr std::string_view kIdAsName =
    "<|tool_call_begin|>call_abcdef_123456<|tool_call_argument_begin|>";

bool shows(const std::optional<std::string>& text, std::string_view word) {
  return text && text->find(word) != std::string::npos;
}

std::string quoted(std::string_view text) {
  return '"' + std::string(text) + '"';
}

std::string part(std::string_view text) {
  return R"({"type": "text", "text": ")" + std::string(text) + R"("})";
}

std::string parts(std::string_view a, std::string_view b) {
  return "[" + part(a) + ", " + part(b) + "]";
}

std::string call(std::string_view name, std::string_view arguments, std::string_view id) {
  return R"({"id": ")" + std::string(id) + R"(", "type": "function", "function": {"name": ")" +
         std::string(name) + R"(", "arguments": )" + std::string(arguments) + "}}";
}

// Says whether parts were rendered as Python's or JSON's form of them, and not as their text.
bool shows_parts(const std::optional<std::string>& text) {
  return shows(text, "'type'") || shows(text, "\"type\"");
}

class Prober {
 public:
  explicit Prober(const Chat& chat) : chat_(chat) {}

  Abilities run(std::string_view source) {
    find_conversations(source);
    find_absent();
    find_parts_only();
    roles();
    contents();
    calls();
    reasoning();
    thinking();
    efforts(source);
    other_switch();
    return can_;
  }

 private:
  // Renders messages without any adaptation; returns nothing if the template refuses or fails.
  std::optional<std::string> render(const std::string& messages, std::string_view more = {}) const {
    std::string json = R"({"messages": [)" + messages + "]";
    if (in_conversations_)
      json += R"(, "chat_template_kwargs": {"conversations": [[)" + messages + "]]}";
    json += std::string(more) + "}";
    ChatRequest request;
    request.json = json;
    request.now.tm_year = 126;
    request.now.tm_mday = 1;
    request.now.tm_wday = 4;
    request.absent_as_none = absent_as_none_;
    if (past_limits_) return std::nullopt;
    const Result<ChatPrompt> prompt = chat_.render(request);
    if (!prompt.ok()) {
      past_limits_ = prompt.error().code() == ErrorCode::kResourceExhausted;
      return std::nullopt;
    }
    return prompt.value().text();
  }
  std::optional<std::string> with_tools(const std::string& messages) const {
    return render(messages, R"(, "tools": )" + std::string(kTool));
  }

  void find_conversations(std::string_view source) {
    if (source.find("conversations") == source.npos) return;
    if (shows(render(message("user", quoted(kFirst))), kFirst)) return;
    in_conversations_ = true;
    in_conversations_ = shows(render(message("user", quoted(kFirst))), kFirst);
    if (in_conversations_) can_.adaptations.add(Adaptation::kConversationsGiven);
  }

  // transformers passes none for tools and documents that a request lacks, and a template may compare them with it.
  // Another template fails on none and takes what is undefined.
  void find_absent() {
    const std::string user = message("user", quoted(kFirst));
    bool fails = false, differs = false;
    for (const std::string& messages : {user, message("system", quoted(kSecond)) + ", " + user,
                                        message("user", parts(kFirst, kSecond))}) {
      absent_as_none_ = false;
      const auto undefined = render(messages);
      absent_as_none_ = true;
      const auto none = render(messages);
      fails = fails || refuses_null(undefined, none);
      differs = differs || (none && none != undefined);
    }
    absent_as_none_ = differs && !fails;
    if (absent_as_none_) can_.adaptations.add(Adaptation::kAbsentAsNone);
  }

  // Templates of models that also see images may read a list of parts only, and take a string's characters for parts.
  void find_parts_only() {
    if (shows(render(message("user", quoted(kFirst))), kFirst)) return;
    if (!read(render(message("user", parts(kFirst, kSecond))))) return;
    parts_only_ = true;
    can_.adaptations.add(Adaptation::kContentAsParts);
  }

  std::string message(std::string_view role, std::string_view content,
                      std::string_view more = {}) const {
    const bool wraps = parts_only_ && content.starts_with('"');
    return R"({"role": ")" + std::string(role) + R"(", "content": )" +
           (wraps ? R"([{"type": "text", "text": )" : "") + std::string(content) +
           (wraps ? "}]" : "") + std::string(more) + "}";
  }

  void roles() {
    const auto with = [this](const char* role) {
      return render(message(role, quoted(kFirst)) + ", " + message("user", quoted(kSecond)));
    };
    const auto system = with("system");
    can_.system_role = shows(system, kFirst) && shows(system, kSecond);
    can_.developer_role = can_.system_role && with("developer") == system;
    if (!can_.developer_role) can_.adaptations.add(Adaptation::kDeveloperAsSystem);
    const auto continued =
        render(message("system", quoted(kFirst)) + ", " + message("user", quoted("Hi")) + ", " +
               message("assistant", quoted(kSecond)));
    can_.system_before_answers =
        !can_.system_role || !shows(continued, kSecond) || shows(continued, kFirst);
    const auto both = [this](const char* role, const std::string& more) {
      const auto text =
          render(message(role, quoted(kFirst)) + ", " + message(role, quoted(kSecond)) + more);
      return shows(text, kFirst) && shows(text, kSecond);
    };
    if (can_.system_role && !both("system", ", " + message("user", quoted("Hi"))))
      can_.adaptations.add(Adaptation::kSystemsJoined);
    const std::string answered =
        message("user", quoted("Hi")) + ", " + message("assistant", quoted("Hi")) + ", ";
    const std::string second = message("user", quoted(kSecond));
    const auto later = render(message("system", quoted(kFirst)) + ", " + answered +
                              message("system", quoted(kResult)) + ", " + second);
    if (can_.system_role && shows(render(answered + second), kSecond) &&
        !(shows(later, kFirst) && shows(later, kResult) && shows(later, kSecond)))
      can_.adaptations.add(Adaptation::kLaterSystemAsUser);
    if (shows(render(message("user", quoted(kFirst))), kFirst) && !both("user", ""))
      can_.adaptations.add(Adaptation::kNeighboursJoined);
    // If the template also refuses the user's message alone, it refuses for another reason.
    if (!can_.system_role && shows(render(message("user", quoted(kSecond))), kSecond))
      can_.adaptations.add(Adaptation::kSystemMergedIntoUser);
  }

  static bool read(const std::optional<std::string>& text) {
    return shows(text, kFirst) && shows(text, kSecond) && !shows_parts(text);
  }

  void contents() {
    const std::string user = message("user", quoted("Hi"));
    const std::string second = message("user", quoted(kSecond));
    const auto alone = render(second);
    can_.loses_users = alone && !shows(alone, kSecond);
    const auto after = render(user + ", " + message("assistant", quoted(kFirst)) + ", " + second);
    can_.loses_answers = shows(after, kSecond) && !shows(after, kFirst);
    const std::string answer = message("assistant", quoted("Hi"));
    const std::string both = std::string(kFirst) + " " + std::string(kSecond);
    const bool of_user = read(render(message("user", parts(kFirst, kSecond))));
    const bool of_assistant =
        read(render(user + ", " + message("assistant", "[" + part(both) + "]") + ", " + user));
    const bool of_system =
        !can_.system_role || read(render(message("system", parts(kFirst, kSecond)) + ", " + user));
    const bool of_system_one =
        !can_.system_role || read(render(message("system", "[" + part(both) + "]") + ", " + user));
    can_.content_parts = of_user && of_assistant && of_system_one;
    if (!of_user || !of_assistant)
      can_.adaptations.add(Adaptation::kContentPartsJoined);
    else if (!of_system)
      can_.adaptations.add(Adaptation::kSystemPartsJoined);
    const auto answered = [&](const char* content) {
      return render(user + ", " + message("assistant", content) + ", " + user);
    };
    if (refuses_null(answered(R"("")"), answered("null")))
      can_.adaptations.add(Adaptation::kNullAnswerAsEmpty);
  }

  // Says whether content that is null fails, or shows as a word, where empty content does not.
  static bool refuses_null(const std::optional<std::string>& of_empty,
                           const std::optional<std::string>& of_null) {
    const auto prints = [&](std::string_view word) {
      return shows(of_null, word) && !shows(of_empty, word);
    };
    return of_empty && (!of_null || prints("None") || prints("null"));
  }

  // Renders a user's question, the assistant's call or calls, and the result.
  std::string called(std::string_view content, std::string_view arguments,
                     std::string_view id = kShortId, std::string_view more_calls = {},
                     std::string_view more = {},
                     const std::string& result = quoted(kResult)) const {
    return message("user", quoted("Hi")) + ", " +
           message("assistant", content,
                   R"(, "tool_calls": [)" + call("Qf7tool", arguments, id) +
                       std::string(more_calls) + "]" + std::string(more)) +
           ", " +
           message("tool", result,
                   R"(, "name": "Qf7tool", "tool_call_id": ")" + std::string(id) + "\"");
  }

  // Finds the content that shows calls beside it: "" or null.
  void calls() {
    can_.tools = shows(with_tools(message("user", quoted("Hi"))), "Qf7tool");
    if (can_.tools) bare_tools();
    std::string_view empty = R"("")";
    std::string_view arguments = kArgumentsObject;
    const auto tried = [&](std::string_view content, std::string_view given) {
      const auto text = with_tools(called(content, given));
      return shows(text, kArgument) ? text : std::nullopt;
    };
    auto of_object = tried(empty, kArgumentsObject);
    auto of_text = tried(empty, kArgumentsText);
    if (!of_object && !of_text) {
      of_object = tried("null", kArgumentsObject);
      of_text = tried("null", kArgumentsText);
      if (of_object || of_text) {
        empty = "null";
        can_.adaptations.add(Adaptation::kEmptyContentAsNull);
      }
    }
    // A template that inserts the arguments unchanged needs JSON text, because an object would appear in Python's form,
    // which the model does not write.
    const std::size_t bare = of_text ? of_text->find(kArgumentsObject) : std::string::npos;
    if (shows(of_object, kArgumentsOfPython) && bare != std::string::npos && bare > 0 &&
        (*of_text)[bare - 1] != '\'' && (*of_text)[bare - 1] != '"')
      of_object.reset();
    // Text that is encoded as JSON a second time is not a form that the model knows.
    if (of_text && of_text != of_object && of_text->find(kArgumentsObject) == std::string::npos &&
        of_object)
      of_text.reset();
    if (of_object && of_text)
      can_.arguments =
          *of_object == *of_text ? Abilities::Arguments::kEither : Abilities::Arguments::kObject;
    else if (of_object)
      can_.arguments = Abilities::Arguments::kObject;
    else if (of_text)
      can_.arguments = Abilities::Arguments::kString;
    can_.tool_calls = can_.arguments != Abilities::Arguments::kNone;
    if (can_.arguments == Abilities::Arguments::kObject)
      can_.adaptations.add(Adaptation::kArgumentsAsObject);
    if (can_.arguments == Abilities::Arguments::kString) {
      can_.adaptations.add(Adaptation::kArgumentsAsText);
      arguments = kArgumentsText;
    }
    null_content(empty, arguments);
    details(empty, arguments);
    if (!can_.tools && !can_.tool_calls) tools_in_system();
  }

  // Offers the template tools without the members that OpenAI's clients may leave out.
  void bare_tools() {
    constexpr const char* kDescription = R"(, "description": "Probes.")";
    const auto takes = [this](const std::string& members) {
      return shows(render(message("user", quoted("Hi")),
                          R"(, "tools": [{"type": "function", "function": {"name": "Qf7tool")" +
                              members + "}}]"),
                   "Qf7tool");
    };
    if (!takes(R"(, "parameters": {"type": "object", "properties": {}})"))
      can_.adaptations.add(Adaptation::kToolDescriptionAsEmpty);
    if (!takes(kDescription)) can_.adaptations.add(Adaptation::kToolParametersAsEmpty);
    if (!takes(kDescription + std::string(R"(, "parameters": {"type": "object"})")))
      can_.adaptations.add(Adaptation::kToolPropertiesAsEmpty);
  }

  void tools_in_system() {
    const std::string user = message("user", quoted("Hi"));
    const auto text =
        render(message("system", quoted("Hi"), R"(, "tools": "Qf7tool")") + ", " + user);
    if (!shows(text, "<|tool|>Qf7tool<|/tool|>")) return;
    can_.adaptations.add(Adaptation::kToolsInSystem);
    can_.tools = can_.tool_calls = can_.parallel_calls = can_.content_beside_calls = true;
    can_.calls_beside_content = can_.content_beside_old_calls = true;
    can_.calls_without_tools = can_.results_without_tools = true;
    can_.arguments = Abilities::Arguments::kEither;
  }

  void null_content(std::string_view empty, std::string_view arguments) {
    if (empty == "null") return;
    if (refuses_null(with_tools(called(R"("")", arguments)), with_tools(called("null", arguments))))
      can_.adaptations.add(Adaptation::kNullContentAsEmpty);
  }

  void details(std::string_view empty, std::string_view arguments) {
    can_.tool_results = shows(with_tools(called(empty, arguments)), kResult);
    if (!can_.tool_calls) return;
    const std::string in_parts = parts(kFirst, kSecond);
    if (can_.tool_results && !can_.adaptations.has(Adaptation::kContentPartsJoined) &&
        !read(with_tools(called(empty, arguments, kShortId, {}, {}, in_parts))))
      can_.adaptations.add(Adaptation::kResultPartsJoined);
    const auto takes = [&](std::string_view id) {
      return with_tools(called(empty, arguments, id)).has_value();
    };
    if (takes(kShortId) && !(takes(kLongId) && takes(kTinyId)))
      can_.adaptations.add(Adaptation::kToolCallIds9Alnum);
    const auto asked =
        with_tools(called(empty, arguments) + ", " + message("user", quoted(kSecond)));
    if (can_.tool_results && !(shows(asked, kResult) && shows(asked, kSecond)))
      can_.adaptations.add(Adaptation::kQuestionIntoResult);
    std::string bare = called(empty, arguments);
    constexpr std::string_view kType = R"("type": "function", )";
    bare.erase(bare.find(kType), kType.size());
    if (!with_tools(bare)) can_.adaptations.add(Adaptation::kCallTypeGiven);
    if (shows(with_tools(called(empty, arguments, kLongId)), kIdAsName))
      can_.adaptations.add(Adaptation::kToolCallIdsNumbered);
    const std::string second = ", " + call("Qf7other", arguments, "abcdef124");
    const char* const of_second =
        can_.adaptations.has(Adaptation::kToolCallIdsNumbered) ? "abcdef124" : "Qf7other";
    can_.parallel_calls = shows(with_tools(called(empty, arguments, kShortId, second)), of_second);
    const auto beside = with_tools(called(quoted(kFirst), arguments));
    can_.content_beside_calls = shows(beside, kFirst);
    can_.calls_beside_content = !beside || shows(beside, kArgument);
    const auto later =
        with_tools(called(quoted(kFirst), arguments) + ", " + message("assistant", quoted("Hi")) +
                   ", " + message("user", quoted("Hi")));
    can_.content_beside_old_calls = !later || shows(later, kFirst);
    const auto held =
        with_tools(message("system", quoted(kFirst)) + ", " + called(empty, arguments));
    can_.system_before_results = !can_.system_role || !shows(held, kResult) || shows(held, kFirst);
    const auto without = render(called(empty, arguments));
    can_.calls_without_tools = !without || shows(without, kArgument);
    can_.results_without_tools = !without || shows(without, kResult);
    reasoning_calls_ = std::make_pair(std::string(empty), std::string(arguments));
  }

  // Says whether a field's text is shown, in an answer to the last question or in one that calls a tool.
  bool shows_reasoning(std::string_view content, std::string_view more) const {
    const std::string user = message("user", quoted("Hi"));
    if (const auto text = render(user + ", " + message("assistant", content, more) + ", " + user);
        shows(text, kReasoning) && !shows_parts(text))
      return true;
    if (!reasoning_calls_) return false;
    const std::string_view beside = content == quoted("Hi") ? reasoning_calls_->first : content;
    const auto text = with_tools(called(beside, reasoning_calls_->second, kShortId, {}, more));
    return shows(text, kReasoning) && !shows(text, "'thinking'");
  }

  void reasoning() {
    const std::string word = quoted(kReasoning);
    if (shows_reasoning(quoted("Hi"), R"(, "reasoning_content": )" + word)) return;
    if (shows_reasoning(quoted("Hi"), R"(, "thinking": )" + word)) {
      can_.adaptations.add(Adaptation::kReasoningAsThinking);
      content_beside_thinking(R"(, "thinking": )" + word);
    } else if (can_.content_parts &&
               shows_reasoning(
                   R"([{"type": "thinking", "thinking": )" + word + "}, " + part("Hi") + "]", {}))
      can_.adaptations.add(Adaptation::kReasoningAsThinkingPart);
  }

  // Some templates take text or thinking beside calls, and refuse both together.
  void content_beside_thinking(const std::string& thinking) {
    if (!reasoning_calls_) return;
    const auto& [empty, arguments] = *reasoning_calls_;
    const auto beside = [&](const std::string& content) {
      return with_tools(called(content, arguments, kShortId, {}, thinking)).has_value();
    };
    if (beside(empty) && !beside(quoted(kFirst)))
      can_.adaptations.add(Adaptation::kContentIntoThinking);
  }

  void thinking() {
    const std::string user = message("user", quoted("Hi"));
    const auto plain = render(user);
    can_.thinking_on =
        render(user, R"(, "chat_template_kwargs": {"enable_thinking": true})") != plain;
    can_.thinking_off =
        render(user, R"(, "chat_template_kwargs": {"enable_thinking": false})") != plain;
  }

  // Finds the variable that takes the place of enable_thinking: Cohere's, MiniMax's, that of templates which know the
  // effort `none` (Mistral, Hunyuan).
  void other_switch() {
    static constexpr ThinkingSwitch kSwitches[] = {{"thinking"},
                                                   {"reasoning"},
                                                   {"thinking_mode", "enabled", "disabled"},
                                                   {"reasoning_effort", "high", "none"},
                                                   {"reasoning_effort", "high", "no_think"}};
    if (can_.thinking_on || can_.thinking_off) return;
    const auto with = [this](const ThinkingSwitch& each, const char* word, const char* value) {
      return render(message("user", quoted("Hi")),
                    R"(, "chat_template_kwargs": {")" + std::string(each.name) + R"(": )" +
                        (word == nullptr ? value : quoted(word)) + "}");
    };
    for (const ThinkingSwitch& each : kSwitches) {
      // A template that knows no such effort takes the nearest one, and its model reasons all the same.
      if (each.name == std::string_view("reasoning_effort") &&
          can_.efforts.nearest("none") != each.off)
        continue;
      const auto on = with(each, each.on, "true"), off = with(each, each.off, "false");
      if (!on || !off || *on == *off) continue;
      can_.other_switch = &each;
      return;
    }
  }

  void efforts(std::string_view source) {
    can_.efforts = Efforts(source, [this](std::string_view effort) {
      return render(message("user", quoted("Hi")), R"(, "reasoning_effort": )" + quoted(effort));
    });
  }

  const Chat& chat_;
  bool in_conversations_ = false, parts_only_ = false, absent_as_none_ = false;
  mutable bool past_limits_ = false;  // once true, nothing more is tried
  Abilities can_;
  std::optional<std::pair<std::string, std::string>> reasoning_calls_;
};

}  // namespace

Abilities probe(const Chat& chat, std::string_view source) {
  return Prober(chat).run(source);
}

}  // namespace bulkhead::jinja
