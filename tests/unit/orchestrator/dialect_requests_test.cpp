// Tests how requests to the Messages, Responses, Ollama and llama.cpp APIs are read, and which of their fields are
// refused by name.
#include <limits>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "orchestrator/http/llama_cpp.hpp"
#include "orchestrator/http/messages.hpp"
#include "orchestrator/http/ollama.hpp"
#include "orchestrator/http/responses.hpp"
#include "tests/unit/orchestrator/parsed_requests.hpp"

namespace bulkhead::orchestrator {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Parsed<GenerationRequest> response(const std::string& more) {
  return parse_responses(R"({"input":"x",)" + more + "}");
}

TEST(Messages, ToolsThatFailedSaySoInTheirText) {
  const auto shown = [](const std::string& result) {
    const json chat = chat_of(parse_messages(
        R"({"max_tokens":9,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[)"
        R"({"type":"tool_use","id":"t","name":"f","input":{}}]},{"role":"user","content":[)"
        R"({"type":"tool_result","tool_use_id":"t")" +
        result + "}]}]}"));
    return chat.at("messages").at(2).at("content").get<std::string>();
  };
  EXPECT_EQ(shown(R"(,"is_error":true,"content":"no such file")"), "Error: no such file");
  EXPECT_EQ(shown(R"(,"is_error":true,"content":[{"type":"text","text":"Exit code 1"}])"),
            "Error: Exit code 1");
  EXPECT_EQ(shown(R"(,"is_error":true)"), "Error");
  EXPECT_EQ(shown(R"(,"is_error":false,"content":"no such file")"), "no such file");
  EXPECT_EQ(shown(R"(,"is_error":null,"content":"no such file")"), "no such file");
  // Some tools say so themselves, Claude Code's among them.
  EXPECT_EQ(shown(R"(,"is_error":true,"content":"ERROR: no such file")"), "ERROR: no such file");
  EXPECT_EQ(shown(R"(,"is_error":true,"content":"<tool_use_error>bad path</tool_use_error>")"),
            "<tool_use_error>bad path</tool_use_error>");
  EXPECT_THAT(
      refusal(parse_messages(R"({"max_tokens":9,"messages":[{"role":"user","content":[)"
                             R"({"type":"tool_result","tool_use_id":"t","is_error":"yes"}]}]})")),
      HasSubstr("is_error' must be a boolean"));
}

TEST(Responses, RefusesOptionsOfTheWrongType) {
  EXPECT_THAT(refusal(response(R"("reasoning":"high")")),
              HasSubstr("'reasoning' must be an object"));
  EXPECT_THAT(refusal(response(R"("text":"json")")), HasSubstr("'text' must be an object"));
  EXPECT_EQ(refusal(response(R"("reasoning":null,"text":null)")), "");
}

TEST(Responses, SaysWhichToolsItLeavesOut) {
  const auto parsed = response(
      R"("tools":[{"type":"custom","name":"p"},{"type":"function","name":"f"},{"type":"web_search"},{"type":"custom","name":"q"}])");
  ASSERT_EQ(refusal(parsed), "");
  EXPECT_THAT(std::get<GenerationRequest>(parsed).warnings,
              ElementsAre("tools of type \"custom\" are left out",
                          "tools of type \"web_search\" are left out"));
  // Headers stay short and of ASCII whatever the client writes.
  json tools = json::array();
  for (int i = 0; i < 100; ++i)
    tools.push_back({{"type", std::string(31, 'a') + "é" + std::to_string(i)}});
  const auto many = response("\"tools\":" + tools.dump());
  ASSERT_EQ(refusal(many), "");
  EXPECT_THAT(std::get<GenerationRequest>(many).warnings,
              ElementsAre("tools of type \"" + std::string(31, 'a') + "\\ufffd\" are left out"));
  EXPECT_TRUE(std::get<GenerationRequest>(response("\"tools\":[]")).warnings.empty());
}

// The model would answer as if nothing had been chosen.
TEST(Responses, AToolOfTheClientThatIsLeftOutCanNotBeChosen) {
  EXPECT_THAT(
      refusal(response(
          R"("tools":[{"type":"custom","name":"p"}],"tool_choice":{"type":"custom","name":"p"})")),
      HasSubstr("'tool_choice' is a tool of type 'custom'"));
  EXPECT_EQ(
      refusal(response(R"("tools":[{"type":"web_search"}],"tool_choice":{"type":"web_search"})")),
      "");
}

Parsed<GenerationRequest> message(const std::string& more, const std::string& last = "") {
  return parse_messages(R"({"messages":[{"role":"user","content":"x"})" + last + "]" + more + "}");
}

TEST(Messages, SaysThatItCutsNothingFromAConversation) {
  const auto warnings = [](const std::string& edits) {
    const auto parsed = parse_messages(
        R"({"max_tokens":9,"messages":[{"role":"user","content":"x"}],"context_management":)" +
        edits + "}");
    EXPECT_EQ(refusal(parsed), "");
    return std::get<GenerationRequest>(parsed).warnings;
  };
  EXPECT_THAT(warnings(R"({"edits":[{"type":"clear_tool_uses_20250919"}]})"),
              ElementsAre("the edits of context_management are left out"));
  // Claude Code sends this with each request.
  EXPECT_TRUE(warnings(R"({"edits":[{"type":"clear_thinking_20251015","keep":"all"}]})").empty());
  EXPECT_TRUE(warnings("{}").empty());
  EXPECT_TRUE(warnings("null").empty());
}

TEST(Messages, KeepsAllReasoningOfAConversationWhereTheClientAsksForIt) {
  const auto chat = [](const std::string& keep) {
    return chat_of(message(R"(,"context_management":{"edits":[{"type":"clear_thinking_20251015")" +
                           keep + "}]}"));
  };
  EXPECT_EQ(chat(R"(,"keep":"all")").at("keep_reasoning"), true);
  EXPECT_EQ(chat(R"(,"keep":{"type":"all"})").at("keep_reasoning"), true);
  EXPECT_FALSE(chat(R"(,"keep":{"type":"thinking_turns","value":1})").contains("keep_reasoning"));
  EXPECT_FALSE(chat("").contains("keep_reasoning"));
}

TEST(Messages, ThinkingIsOneOfThreeTypes) {
  EXPECT_EQ(chat_of(message(R"(,"thinking":{"type":"adaptive"})")).at("enable_thinking"), true);
  EXPECT_EQ(chat_of(message(R"(,"thinking":{"type":"disabled"})")).at("enable_thinking"), false);
  EXPECT_THAT(refusal(message(R"(,"thinking":{"type":"off"})")),
              HasSubstr("'thinking.type' must be"));
}

TEST(Messages, AnEmptyLastMessageBeginsNoAnswer) {
  for (const char* content : {"\"\"", "[]", R"([{"type":"text","text":""}])"}) {
    const json chat =
        chat_of(message("", R"(,{"role":"assistant","content":)" + std::string(content) + "}"));
    EXPECT_EQ(chat.at("messages").size(), 1U) << content;
    EXPECT_FALSE(chat.contains("continue_final_message")) << content;
  }
  EXPECT_EQ(
      chat_of(message("", R"(,{"role":"assistant","content":"y"})")).at("continue_final_message"),
      true);
}

TEST(Messages, ALastMessageThatNoAnswerCanContinueIsNamed) {
  const std::string head = R"(,{"role":"assistant","content":[{"type":)";
  EXPECT_THAT(refusal(message("", head + R"("tool_use","id":"t","name":"f","input":{}}]})")),
              HasSubstr("'messages[1].content' has a tool_use"));
  EXPECT_THAT(refusal(message("", head + R"("thinking","thinking":"hm","signature":""}]})")),
              HasSubstr("'messages[1].content' ends with thinking"));
}

TEST(Messages, AUsersMessageMayHaveNoBlocks) {
  const json chat = chat_of(parse_messages(R"({"messages":[{"role":"user","content":[]}]})"));
  EXPECT_EQ(chat.at("messages").size(), 1U);
}

TEST(Ollama, AnEmptyLastMessageBeginsNoAnswer) {
  const auto request = parse_ollama_chat(
      R"({"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","content":""}]})");
  ASSERT_TRUE(std::holds_alternative<OllamaRequest>(request));
  const json chat = chat_of(std::get<OllamaRequest>(request).wanted);
  EXPECT_EQ(chat.at("messages").size(), 1U);
  EXPECT_FALSE(chat.contains("continue_final_message"));
}

TEST(Ollama, ToolsNeedNoType) {
  const auto request = parse_ollama_chat(
      R"({"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"function":{"name":"f"}}]})");
  ASSERT_TRUE(std::holds_alternative<OllamaRequest>(request));
  EXPECT_EQ(chat_of(std::get<OllamaRequest>(request).wanted).at("tools")[0]["function"]["name"],
            "f");
}

// llama.vim sends such a request. A double would round these integers, and the model or its constraint would
// get other ones than the client wrote.
TEST(Dialects, PassIntegersOnWithTheirDigits) {
  constexpr const char* kLarge = "12345678901234567890123";
  const std::string schema =
      R"({"type":"object","properties":{"a":{"const":12345678901234567890123}}})";
  const auto chat = [](const Parsed<GenerationRequest>& parsed) {
    EXPECT_EQ(refusal(parsed), "");
    return std::get<ipc::ChatPrompt>(std::get<GenerationRequest>(parsed).prompts.at(0)).json;
  };
  const std::string call = R"({"a":12345678901234567890123})";
  EXPECT_THAT(
      chat(parse_messages(
          R"({"max_tokens":9,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f","input_schema":)" +
          schema + "}]}")),
      HasSubstr(kLarge));
  EXPECT_THAT(
      chat(parse_messages(
          R"({"max_tokens":9,"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":)" +
          call + R"(}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}]})")),
      HasSubstr(kLarge));
  EXPECT_THAT(
      chat(response(R"("tools":[{"type":"function","name":"f","parameters":)" + schema + "}]")),
      HasSubstr(kLarge));
  const auto ollama = [&](const std::string& more) {
    return std::get<OllamaRequest>(
               parse_ollama_chat(R"({"messages":[{"role":"user","content":"x"}],)" + more + "}"))
        .wanted;
  };
  EXPECT_THAT(chat(ollama(R"("tools":[{"function":{"name":"f","parameters":)" + schema + "}}]")),
              HasSubstr(kLarge));
  EXPECT_EQ(ollama(R"("format":)" + schema).parameters.constraint.text, schema);
  const auto llama = parse_llama_completion(R"({"prompt":"x","json_schema":)" + schema + "}");
  EXPECT_EQ(std::get<GenerationRequest>(llama).parameters.constraint.text, schema);
  EXPECT_THAT(
      refusal(std::get<ApiError>(parse_ollama_chat(
          R"({"messages":[{"role":"user","content":"x"}],"options":{"num_predict":99999999999999999999}})"))),
      HasSubstr("'max_tokens' must be between"));
}

// ---- the client's own names ----

ApiError refused(const Parsed<GenerationRequest>& parsed) {
  const auto* error = std::get_if<ApiError>(&parsed);
  EXPECT_NE(error, nullptr);
  return error == nullptr ? ApiError() : *error;
}

std::string told(const HttpResponse& refusal) {
  const json error = json::parse(refusal.body)["error"];
  return error.is_string() ? error.get<std::string>() : error["message"].get<std::string>();
}

const std::string kLongName(300, 'n');

TEST(OwnNames, OfAMessagesRequest) {
  const auto refusal_of = [](const std::string& members) {
    const ApiError error = refused(parse_messages(
        R"({"max_tokens":9,"messages":[{"role":"user","content":"x"}],)" + members + "}"));
    return told(messages_refusal(error, "req_1"));
  };
  const std::string schema = R"({"type":"json_schema","schema":7})";
  EXPECT_THAT(refusal_of(R"("output_format":)" + schema), HasSubstr("'output_format.schema' must"));
  EXPECT_THAT(refusal_of(R"("output_config":{"format":)" + schema + "}"),
              HasSubstr("'output_config.format.schema' must"));
  EXPECT_THAT(
      refusal_of(
          R"("grammar":"root ::= \"a\"","output_format":{"type":"json_schema","schema":{"type":"object"}})"),
      HasSubstr("'grammar' can't be used beside 'output_format'"));
  // The system prompt and the results of tools are messages of their own to the parser of chats.
  const auto long_name = parse_messages(
      R"({"system":"s","max_tokens":9,"messages":[{"role":"user","content":"x"},{"role":"assistant","content":[)"
      R"({"type":"text","text":"y"},{"type":"tool_use","id":"t","input":{},"name":")" +
      kLongName + R"("}]},{"role":"user","content":"z"}]})");
  EXPECT_EQ(refused(long_name).parameter, "messages[1].content[1].name");
}

TEST(OwnNames, OfTheFormatThatAWorkerRefuses) {
  const std::string schema = R"({"type":"json_schema","schema":{"type":"object"}})";
  for (const auto& [members, name] :
       {std::pair(R"("output_format":)" + schema, "output_format"),
        std::pair(R"("output_config":{"format":)" + schema + "}", "output_config.format")}) {
    const auto parsed = parse_messages(
        R"({"max_tokens":9,"messages":[{"role":"user","content":"x"}],)" + members + "}");
    ASSERT_EQ(refusal(parsed), "");
    EXPECT_EQ(std::get<GenerationRequest>(parsed).parameters.constraint.parameter, name);
  }
}

TEST(OwnNames, OfAResponsesRequest) {
  const auto refusal_of = [](const Parsed<GenerationRequest>& parsed) {
    return told(responses_refusal(refused(parsed)));
  };
  // Tools that are left out, and namespaces, have no place in the chat.
  EXPECT_THAT(
      refusal_of(response(
          R"("tools":[{"type":"web_search"},{"type":"function","name":"f","parameters":7}])")),
      HasSubstr("'tools[1].parameters' must"));
  EXPECT_THAT(
      refusal_of(response(
          R"("tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"f"},)"
          R"({"type":"function","name":"g","strict":7}]}])")),
      HasSubstr("'tools[0].tools[1].strict' must"));
  EXPECT_THAT(
      refusal_of(parse_responses(
          R"({"instructions":"i","input":[{"role":"user","content":"x"},{"type":"function_call",)"
          R"("call_id":"c","arguments":"{}","name":")" +
          kLongName + R"("}]})")),
      HasSubstr("'input[1].name' must have 1 to 256 bytes"));
  EXPECT_THAT(
      refusal_of(response(
          R"("ignore_eos":true,"text":{"format":{"type":"json_schema","schema":{"type":"object"}}})")),
      HasSubstr("'ignore_eos' can't be true beside 'text.format'"));
}

TEST(OwnNames, OfAnInfillRequest) {
  const auto told_by_worker = [](const std::string& parameter) {
    ApiError error;
    error.message = "the model's vocabulary has no tokens for filling in";
    error.parameter = parameter;
    return json::parse(infill_refusal(error).body)["error"]["param"].get<std::string>();
  };
  EXPECT_EQ(told_by_worker("suffix"), "input_suffix");
  EXPECT_EQ(told_by_worker("prompt"), "input_prefix");
  const auto parsed_wrong = [](const std::string& members) {
    const auto parsed =
        parse_llama_infill(R"({"input_prefix":"a","input_suffix":"b",)" + members + "}");
    return json::parse(infill_refusal(refused(parsed)).body)["error"];
  };
  EXPECT_EQ(parsed_wrong(R"("prompt":7)")["param"], "prompt");
  EXPECT_THAT(parsed_wrong(R"("suffix":"c")")["message"].get<std::string>(),
              HasSubstr("'suffix' is called 'input_suffix'"));
  EXPECT_EQ(refusal(parse_llama_infill(R"({"input_prefix":"a","input_suffix":"b","suffix":""})")),
            "");
}

// Clients that send this default want another answer each time.
TEST(Dialects, ASeedOfMinusOneIsDrawnWhereTheProtocolSaysSo) {
  const auto has_seed = [](const Parsed<GenerationRequest>& parsed) {
    EXPECT_EQ(refusal(parsed), "");
    return std::get<GenerationRequest>(parsed).has_seed;
  };
  for (const char* drawn : {"-1", "4294967295", "null"})
    EXPECT_FALSE(
        has_seed(parse_llama_completion(R"({"prompt":"x","seed":)" + std::string(drawn) + "}")))
        << drawn;
  EXPECT_TRUE(has_seed(parse_llama_completion(R"({"prompt":"x","seed":0})")));
  const auto ollama = [&](const std::string& seed) {
    const std::string body =
        R"({"messages":[{"role":"user","content":"x"}],"options":{"seed":)" + seed + "}}";
    return has_seed(std::get<OllamaRequest>(parse_ollama_chat(body)).wanted);
  };
  EXPECT_FALSE(ollama("-1"));
  EXPECT_TRUE(ollama("42"));
}

// In this form a client asks Ollama to load or to unload a model.
TEST(Ollama, NamesTheModelToLoadAsOneToAsk) {
  const auto asked = [](const std::string& members) {
    auto parsed = parse_ollama_generate("{" + members + "}");
    const auto* error = std::get_if<ApiError>(&parsed);
    if (error != nullptr) return error->message;
    const auto& request = std::get<OllamaRequest>(parsed);
    EXPECT_TRUE(request.load_only);
    return (request.unload ? "unload " : "load ") + request.wanted.model;
  };
  EXPECT_EQ(asked(R"("model":"a","name":"b")"), "load a");
  EXPECT_EQ(asked(R"("name":"b","keep_alive":0)"), "unload b");
  EXPECT_EQ(asked(R"("model":null,"name":"b","keep_alive":"0s")"), "unload b");
  for (const char* wrong : {R"("model":7)", R"("name":["b"],"keep_alive":0)", R"("model":{})"})
    EXPECT_THAT(asked(wrong), HasSubstr("'model' must be a string")) << wrong;
}

TEST(LlamaCompletion, RefusesImagesByName) {
  for (const char* none : {"[]", "null"})
    EXPECT_EQ(
        refusal(parse_llama_completion(R"({"prompt":"x","image_data":)" + std::string(none) + "}")),
        "");
  EXPECT_THAT(
      refusal(parse_llama_completion(R"({"prompt":"x","image_data":[{"data":"aGk=","id":1}]})")),
      HasSubstr("'image_data' is not supported"));
}

// A worker sends the numbers, and nothing says that they are numbers to JSON.
TEST(LlamaCompletion, EveryLogProbabilityIsANumberInJson) {
  const std::unique_ptr<Dialect> dialect = llama_completion_dialect("{}");
  std::string events;
  dialect->begin({}, {}, events);
  std::vector<ipc::TokenLogprob> logprobs;
  std::vector<ipc::TokenId> tokens;
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity(), -0.5F}) {
    ipc::TokenLogprob logprob;
    logprob.logprob = value;
    logprob.top = {{5, value, "x"}};
    logprobs.push_back(std::move(logprob));
    tokens.push_back(5);
  }
  dialect->note_tokens(tokens, logprobs);
  dialect->add("x", {}, events);
  dialect->end(ipc::FinishReason::kStop, "", {}, events);
  const json whole = json::parse(dialect->whole(), nullptr, false);
  ASSERT_FALSE(whole.is_discarded()) << dialect->whole();
  const json& told = whole["completion_probabilities"];
  ASSERT_EQ(told.size(), 4U);
  for (std::size_t i = 0; i < 3; ++i) {
    constexpr float kImpossible = std::numeric_limits<float>::lowest();
    EXPECT_EQ(told[i]["logprob"].get<float>(), kImpossible);
    EXPECT_EQ(told[i]["top_logprobs"][0]["logprob"].get<float>(), kImpossible);
  }
  EXPECT_EQ(told[3]["logprob"], -0.5);
}

// A model's reasoning precedes what it says or calls.
TEST(Responses, EveryThoughtStaysWithWhatFollowsIt) {
  const auto thought = [](const std::string& text) {
    return json{{"type", "reasoning"}, {"content", {{{"type", "reasoning_text"}, {"text", text}}}}};
  };
  const auto said = [](const std::string& text) {
    return json{{"role", "assistant"}, {"content", text}};
  };
  const json call = {
      {"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{}"}};
  const auto messages = [](const json& items) {
    return chat_of(parse_responses(json{{"input", items}}.dump())).at("messages");
  };
  json made = messages({thought("A"), thought("B"), call});
  ASSERT_EQ(made.size(), 1U);
  EXPECT_EQ(made[0]["reasoning_content"], "AB");
  EXPECT_EQ(made[0]["tool_calls"].size(), 1U);

  made = messages({thought("A"), said("X"), thought("B"), said("Y"), call});
  ASSERT_EQ(made.size(), 2U);
  EXPECT_EQ(made[0]["reasoning_content"], "A");
  EXPECT_EQ(made[0]["content"], "X");
  EXPECT_EQ(made[1]["reasoning_content"], "B");
  EXPECT_EQ(made[1]["content"], "Y");
  EXPECT_EQ(made[1]["tool_calls"].size(), 1U);

  made = messages({thought("A"), call, thought("B"), call});
  ASSERT_EQ(made.size(), 2U);
  EXPECT_EQ(made[1]["reasoning_content"], "B");
}

TEST(Infill, TakesWhatEditorsSend) {
  const auto parsed = parse_llama_infill(
      R"({"input_prefix":"a","input_suffix":"b","input_extra":[{"text":"c","time":[1,2],"filename":"d"}],)"
      R"("prompt":"e","n_predict":128,"n_indent":4,"top_k":40,"top_p":0.99,"stream":false,)"
      R"("samplers":["top_k","top_p","infill"],"cache_prompt":true,"t_max_prompt_ms":500,)"
      R"("t_max_predict_ms":1000,"response_fields":["content","timings/prompt_n"]})");
  const auto* request = std::get_if<GenerationRequest>(&parsed);
  ASSERT_NE(request, nullptr) << refusal(parsed);
  EXPECT_THAT(request->warnings,
              testing::ElementsAre("the sampler infill is left out", "n_indent is left out",
                                   "t_max_predict_ms is left out"));
  // What the list leaves out is off: it has no temperature and no min_p.
  const ipc::Sampling& sampling = request->parameters.sampling;
  EXPECT_EQ(sampling.temperature, 1);
  EXPECT_EQ(sampling.min_p, 0);
  EXPECT_FLOAT_EQ(sampling.top_p, 0.99F);
  EXPECT_EQ(sampling.top_k, 40U);
  EXPECT_EQ(request->parameters.max_tokens, 128U);
  EXPECT_FALSE(request->parameters.prompt_only);
}

TEST(Infill, NoTokensMeanThatThePromptIsRead) {
  const auto parsed =
      parse_llama_infill(R"({"input_prefix":"a","input_suffix":"b","n_predict":0})");
  ASSERT_TRUE(std::holds_alternative<GenerationRequest>(parsed)) << refusal(parsed);
  EXPECT_TRUE(std::get<GenerationRequest>(parsed).parameters.prompt_only);
}

TEST(LlamaCompletion, SamplersAreThoseOfTheList) {
  const auto sampling = [](const std::string& more) {
    const auto parsed = parse_llama_completion(R"({"prompt":"a",)" + more + "}");
    EXPECT_TRUE(std::holds_alternative<GenerationRequest>(parsed)) << refusal(parsed);
    return std::get<GenerationRequest>(parsed).parameters.sampling;
  };
  const ipc::Sampling plain = sampling(R"("samplers":[])");
  EXPECT_FLOAT_EQ(plain.temperature, 0.8F);
  EXPECT_FLOAT_EQ(plain.min_p, 0.05F);
  const ipc::Sampling some = sampling(
      R"("samplers":["dry","top_k","typ_p","min_p","xtc","temperature"],"repeat_penalty":1.5)");
  EXPECT_FLOAT_EQ(some.temperature, 0.8F);
  EXPECT_FLOAT_EQ(some.min_p, 0.05F);
  EXPECT_EQ(some.top_k, 40U);
  EXPECT_EQ(some.top_p, 1);
  EXPECT_EQ(some.repetition_penalty, 1);
  EXPECT_FLOAT_EQ(
      sampling(R"("samplers":["penalties","temperature"],"repeat_penalty":1.5)").repetition_penalty,
      1.5F);
  for (const char* wrong :
       {R"(["infill"])", R"(["temperature","top_k"])", R"([5])", R"("edkypmxt")", R"(["new"])"}) {
    EXPECT_THAT(
        refusal(parse_llama_completion(R"({"prompt":"a","samplers":)" + std::string(wrong) + "}")),
        HasSubstr("samplers"))
        << wrong;
  }
}

}  // namespace
}  // namespace bulkhead::orchestrator
