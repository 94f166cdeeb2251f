// OpenAI's wire format: requests. malformed_requests_test.cpp tests wrong ones, openai_answer_test.cpp answers.
#include "orchestrator/http/openai.hpp"

#include <limits>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <spdlog/fmt/fmt.h>

#include "orchestrator/http/llama_cpp.hpp"
#include "orchestrator/http/ollama.hpp"
#include "orchestrator/http/questions.hpp"

namespace bulkhead::orchestrator {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(ParseChat, HowLongItMayReasonHasManyNames) {
  const auto budget = [](const std::string& field) {
    const auto parsed = parse_chat(R"({"messages":[{"role":"user","content":"x"}])" + field + "}");
    return std::get<GenerationRequest>(parsed).parameters.reasoning_budget;
  };
  EXPECT_EQ(budget(""), -1);
  for (const char* name :
       {"reasoning_budget", "thinking_budget", "thinking_token_budget", "thinking_budget_tokens"})
    EXPECT_EQ(budget(",\"" + std::string(name) + "\":512"), 512) << name;
  // There is no limit, whatever the setting is.
  EXPECT_EQ(budget(",\"reasoning_budget\":-1"), std::numeric_limits<std::int32_t>::max());
}

TEST(ParseChat, ToolChoiceSaysWhichToolsMustBeCalled) {
  const auto parsed = [](const std::string& choice) {
    return parse_chat(
        R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","strict":true}}],"tool_choice":)" +
        choice + "}");
  };
  const auto parameters = [&](const std::string& choice) {
    return std::get<GenerationRequest>(parsed(choice)).parameters;
  };
  EXPECT_EQ(parameters("null").tool_choice, ipc::ToolChoice::kAuto);
  for (const char* choice : {"\"required\"", "\"any\""})
    EXPECT_EQ(parameters(choice).tool_choice, ipc::ToolChoice::kRequired);
  for (const char* choice :
       {R"({"type":"function","function":{"name":"f"}})", R"({"type":"function","name":"f"})"}) {
    EXPECT_EQ(parameters(choice).tool_choice, ipc::ToolChoice::kNamed);
    EXPECT_EQ(parameters(choice).tool_name, "f");
  }
  const std::pair<const char*, const char*> refused[] = {
      {"\"always\"", "tool_choice"},
      {"5", "tool_choice"},
      {R"({"type":"function","function":{"name":"g"}})", "tool_choice.function.name"},
      {R"({"type":"function","function":{}})", "tool_choice.function.name"},
      {R"("required","response_format":{"type":"json_object"})", "response_format"},
      {R"("required","ignore_eos":true)", "ignore_eos"},
  };
  for (const auto& [choice, parameter] : refused) {
    const auto answer = parsed(choice);
    ASSERT_TRUE(std::holds_alternative<ApiError>(answer)) << choice;
    EXPECT_EQ(std::get<ApiError>(answer).parameter, parameter) << choice;
  }
}

TEST(ParseCompletion, HostileSizesAreRefusedBeforeParsing) {
  std::string deep(1 << 20, '[');
  EXPECT_EQ(std::get<ApiError>(parse_completion(deep)).code, "json_too_deep");
  std::string wide = "{\"prompt\":[0";
  for (int i = 0; i < 1100000; ++i)
    wide += ",0";
  EXPECT_EQ(std::get<ApiError>(parse_completion(wide + "]}")).code, "json_too_large");
  // Brackets in strings do not count as nesting.
  EXPECT_TRUE(std::holds_alternative<GenerationRequest>(
      parse_completion("{\"prompt\":\"" + std::string(1000, '[') + "\\\"[\"}")));
}

TEST(ParseCompletion, SchemasOfThousandsOfPropertiesPassAndLargerOnesAreNamed) {
  const auto parsed = [](int count) {
    std::string properties = R"("a":{})";
    for (int i = 1; i < count; ++i)
      properties += ",\"p" + std::to_string(i) + "\":{}";
    return parse_completion(
        R"({"prompt":"x","response_format":{"type":"json_schema","json_schema":{"schema":{"properties":{)" +
        properties + "}}}}}");
  };
  EXPECT_TRUE(std::holds_alternative<GenerationRequest>(parsed(4096)));
  const auto refused = parsed(4097);
  ASSERT_TRUE(std::holds_alternative<ApiError>(refused));
  EXPECT_EQ(std::get<ApiError>(refused).parameter, "response_format.json_schema.schema");
  EXPECT_THAT(std::get<ApiError>(refused).message,
              HasSubstr("\"properties\" has 4097; one object may have up to 4096"));
}

TEST(ParseCompletion, EveryParameterArrives) {
  auto parsed = parse_completion(
      R"({"prompt":"hi","model":"m","stream":true,"stream_options":{"include_usage":true},"n":2,"best_of":2,"temperature":0.5,"top_p":0,
          "top_k":-1,"min_p":0.1,"repetition_penalty":1.1,"frequency_penalty":-0.5,"presence_penalty":0.5,"seed":-1,"stop":["a","b"],
          "max_tokens":5.0,"logprobs":0,"ignore_eos":true,"return_token_ids":true,"user":"u","metadata":{"a":1},"tools":[],
          "logit_bias":{},"suffix":null,"echo":false,"response_format":{"type":"text"},"prompt":"twice is fine, the last one counts"})");
  ASSERT_TRUE(std::holds_alternative<GenerationRequest>(parsed))
      << std::get<ApiError>(parsed).message;
  auto& request = std::get<GenerationRequest>(parsed);
  EXPECT_EQ(std::get<std::string>(request.prompts.at(0)), "twice is fine, the last one counts");
  EXPECT_EQ(request.model, "m");
  EXPECT_TRUE(request.stream && request.include_usage && request.return_token_ids &&
              request.has_seed);
  EXPECT_EQ(request.n, 2U);
  const ipc::Submit& p = request.parameters;
  EXPECT_FLOAT_EQ(p.sampling.temperature, 0.5F);
  EXPECT_GT(p.sampling.top_p, 0);
  EXPECT_EQ(p.sampling.top_k, 0U);
  EXPECT_EQ(p.sampling.seed, ~std::uint64_t{0});
  EXPECT_EQ(p.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(p.max_tokens, 5U);
  EXPECT_EQ(p.logprobs, 0);
  EXPECT_TRUE(p.ignore_eos);
}

TEST(ParseCompletion, DefaultsAreOpenAisButForTheLength) {
  auto request = std::get<GenerationRequest>(parse_completion(R"({"prompt":[1,2]})"));
  EXPECT_EQ(std::get<std::vector<ipc::TokenId>>(request.prompts.at(0)),
            (std::vector<ipc::TokenId>{1, 2}));
  EXPECT_EQ(request.parameters.sampling.temperature, 1.0F);
  EXPECT_EQ(request.parameters.max_tokens, 0U);  // until the end of the text, or of the context
  EXPECT_EQ(request.parameters.logprobs, -1);
  EXPECT_FALSE(request.stream || request.has_seed);
}

// The worker may put what the model's file recommends in the place of samplers that the client leaves out, also where
// the API has defaults of its own.
TEST(ParseCompletion, SamplersThatNobodyNamesAreOpen) {
  const auto open = [](const Parsed<GenerationRequest>& parsed) {
    return std::get<GenerationRequest>(parsed).parameters.open_samplers;
  };
  const std::uint32_t temperature = 1, top_p = 2, top_k = 4, min_p = 8, repetition = 16, all = 31;
  EXPECT_EQ(open(parse_completion(R"({"prompt":"x"})")), all);
  EXPECT_EQ(open(parse_completion(R"({"prompt":"x","temperature":1,"min_p":0})")),
            top_p | top_k | repetition);
  EXPECT_EQ(open(parse_completion(R"({"prompt":"x","do_sample":false,"repeat_penalty":1})")),
            top_p | top_k | min_p);
  EXPECT_EQ(open(parse_llama_completion(R"({"prompt":"x","top_k":40})")),
            temperature | top_p | min_p | repetition);
  EXPECT_EQ(open(parse_llama_completion(R"({"prompt":"x","do_sample":false})")),
            top_p | top_k | min_p | repetition);
  EXPECT_EQ(open(parse_llama_completion(R"({"prompt":"x","samplers":["top_k"]})")), top_k);
  const auto ollama = parse_ollama_generate(R"({"prompt":"x","options":{"top_p":0.9}})");
  EXPECT_EQ(std::get<OllamaRequest>(ollama).wanted.parameters.open_samplers,
            temperature | top_k | min_p | repetition);
}

TEST(ParseCompletion, WhatIsEmptyIsNotAskedFor) {
  auto parsed = parse_completion(
      R"({"prompt":"x","suffix":"","grammar":"","guided_regex":"","guided_json":{},"bad_words":[],"min_tokens":0})");
  EXPECT_TRUE(std::holds_alternative<GenerationRequest>(parsed))
      << std::get<ApiError>(parsed).message;
}

TEST(ParseCompletion, BiasesAndStopTokensArrive) {
  const auto parameters = [](const char* body) {
    return std::get<GenerationRequest>(parse_completion(body)).parameters;
  };
  const ipc::Submit object = parameters(
      R"({"prompt":"x","logit_bias":{"70":-100,"7":1.5},"stop":["a",5],"stop_token_ids":[6]})");
  EXPECT_EQ(object.logit_bias, (std::vector<ipc::TokenBias>{{7, 1.5F}, {70, -100}}));
  EXPECT_EQ(object.stop, std::vector<std::string>{"a"});
  EXPECT_EQ(object.stop_tokens, (std::vector<ipc::TokenId>{5, 6}));
  const ipc::Submit pairs = parameters(R"({"prompt":"x","logit_bias":[[7,2],[8,false]],"stop":9})");
  EXPECT_EQ(pairs.logit_bias.at(0), (ipc::TokenBias{7, 2}));
  EXPECT_LT(pairs.logit_bias.at(1).bias, -1e20F);
  EXPECT_EQ(pairs.stop_tokens, std::vector<ipc::TokenId>{9});
}

// vLLM's clients send this in place of guided_json and the others.
TEST(ParseCompletion, StructuredOutputsAreTheirMembers) {
  using Kind = ipc::ConstraintKind;
  const auto parsed = [](const std::string& members) {
    return parse_completion(R"({"prompt":"x","structured_outputs":{)" + members + "}}");
  };
  const auto held = [&](const std::string& members) {
    const auto request = parsed(members);
    const auto* error = std::get_if<ApiError>(&request);
    if (error != nullptr) return ipc::Constraint{Kind::kNone, error->message, error->parameter};
    return std::get<GenerationRequest>(request).parameters.constraint;
  };
  const char* const name = "structured_outputs";
  EXPECT_EQ(
      held(R"("json":{"z": 1, "a": 12345678901234567890123},"regex":null,"disable_fallback":true)"),
      (ipc::Constraint{Kind::kJsonSchema, R"({"z":1,"a":12345678901234567890123})", name}));
  EXPECT_EQ(held(R"("json":"{}")"), (ipc::Constraint{Kind::kJsonSchema, "{}", name}));
  EXPECT_EQ(held(R"("regex":"a+")"), (ipc::Constraint{Kind::kRegex, "a+", name}));
  EXPECT_EQ(held(R"("grammar":"root ::= \"a\"")"),
            (ipc::Constraint{Kind::kGrammar, R"(root ::= "a")", name}));
  EXPECT_EQ(held(R"("choice":["a","b"])"),
            (ipc::Constraint{Kind::kGrammar, R"(root ::= "a" | "b")", name}));
  EXPECT_EQ(held(R"("json_object":true)"), (ipc::Constraint{Kind::kJsonObject, "", name}));
  EXPECT_EQ(held(R"("json_object":false)"), ipc::Constraint{});
  EXPECT_EQ(held(R"("structural_tag":"x")").parameter, "structured_outputs.structural_tag");
  EXPECT_EQ(held(R"("regex":7)").parameter, "structured_outputs.regex");
  EXPECT_EQ(held(R"("choice":"a")").parameter, "structured_outputs.choice");
  EXPECT_EQ(held(R"("json":{},"regex":"a","choice":["b"])").kind, Kind::kNone);
}

TEST(ParseCompletion, ConstraintsArriveAsTheyWereWritten) {
  const auto constraint = [](const std::string& fields) {
    auto parsed = parse_completion("{\"prompt\":\"x\"," + fields + "}");
    if (const auto* error = std::get_if<ApiError>(&parsed)) ADD_FAILURE() << error->message;
    return std::get<GenerationRequest>(parsed).parameters.constraint;
  };
  using Kind = ipc::ConstraintKind;
  EXPECT_EQ(constraint(R"("response_format":{"type":"json_object"})"),
            (ipc::Constraint{Kind::kJsonObject, "", "response_format"}));
  // A number keeps the schema's digits, even if no double has that value.
  EXPECT_EQ(
      constraint(R"("guided_json":{"const" : 12345678901234567890123, "a \" b": [1.50, "c  d"] })"),
      (ipc::Constraint{Kind::kJsonSchema,
                       R"({"const":12345678901234567890123,"a \" b":[1.50,"c  d"]})",
                       "guided_json"}));
  // The order of a schema's properties decides their order in the answer.
  const ipc::Constraint schema = {Kind::kJsonSchema, R"({"z":1,"a":[2.5]})", "response_format"};
  EXPECT_EQ(
      constraint(
          R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"z":1,"a":[2.5]}}})"),
      schema);
  EXPECT_EQ(constraint(R"("response_format":{"type":"json_object","schema":{"z":1,"a":[2.5]}})"),
            schema);
  EXPECT_EQ(constraint(R"("json_schema":{"z":1})").text, R"({"z":1})");
  EXPECT_EQ(constraint(R"("guided_json":"{ }")").text, "{ }");
  EXPECT_EQ(constraint(R"("grammar":"root ::= \"a\"")"),
            (ipc::Constraint{Kind::kGrammar, "root ::= \"a\"", "grammar"}));
  EXPECT_EQ(constraint(R"("regex":"a+")"), (ipc::Constraint{Kind::kRegex, "a+", "regex"}));
  EXPECT_EQ(constraint(R"("guided_choice":["yes","a \"b\"\n"])").text,
            R"(root ::= "yes" | "a \"b\"\x0A")");
  EXPECT_EQ(std::get<ApiError>(parse_completion("{\"prompt\":\"x\",\"regex\":\"" +
                                                std::string(300 << 10, 'a') + "\"}"))
                .parameter,
            "regex");
}

TEST(ParseCompletion, MessagesSayWhatIsTrue) {
  const auto message = [](const char* body) {
    return std::get<ApiError>(parse_completion(body)).message;
  };
  EXPECT_EQ(message(R"({"prompt":"x","seed":0.5})"), "'seed' must be an integer of 64 bits.");
  EXPECT_EQ(message(R"({"prompt":"x","min_tokens":2})"),
            "'min_tokens' is not supported by this server; leave it out.");
  for (const char* number : {"1e30", "1e12", "99999999999999999999"}) {
    EXPECT_EQ(message((R"({"prompt":"x","max_tokens":)" + std::string(number) + "}").c_str()),
              "'max_tokens' must be between 1 and 2147483647.")
        << number;
  }
  EXPECT_EQ(message(R"({"prompt":"x","max_tokens":1.5})"), "'max_tokens' must be an integer.");
}

TEST(ParseCompletion, OtherServersNamesAreHonouredOrRefusedByName) {
  const auto read = [](const char* body) {
    return std::get<GenerationRequest>(parse_completion(body)).parameters;
  };
  EXPECT_EQ(read(R"({"prompt":"x","max_tokens":-1})").max_tokens, 0U);
  EXPECT_EQ(read(R"({"prompt":"x","n_predict":7})").max_tokens, 7U);
  EXPECT_EQ(read(R"({"prompt":"x","n_predict":-1})").max_tokens, 0U);
  EXPECT_FLOAT_EQ(read(R"({"prompt":"x","repeat_penalty":1.5})").sampling.repetition_penalty, 1.5F);
  // A field that switches something off changes nothing.
  EXPECT_EQ(read(R"({"prompt":"x","typical_p":1.0,"mirostat":0,"xtc_probability":0,
                     "dry_multiplier":0.0,"dry_base":1.75,"max_tokens":3})")
                .max_tokens,
            3U);
  for (const char* field : {"typical_p", "mirostat", "dry_multiplier", "xtc_probability", "tfs_z",
                            "n_probs", "min_keep", "num_beams", "nsigma", "min_new_tokens"}) {
    const auto parsed = parse_completion(std::string(R"({"prompt":"x",")") + field + "\":0.5}");
    const auto* error = std::get_if<ApiError>(&parsed);
    ASSERT_NE(error, nullptr) << field;
    EXPECT_EQ(error->parameter, field);
    EXPECT_NE(error->message.find("leave it out"), std::string::npos) << error->message;
  }
  for (const char* field :
       {R"("skip_special_tokens":false)", R"("include_stop_str_in_output":true)",
        R"("allowed_token_ids":[5])", R"("add_bos_token":false)", R"("temperature_last":true)",
        R"("sampler_order":[5])"}) {
    const auto parsed = parse_completion(std::string(R"({"prompt":"x",)") + field + "}");
    const auto* error = std::get_if<ApiError>(&parsed);
    ASSERT_NE(error, nullptr) << field;
    EXPECT_EQ(error->parameter, std::string(field).substr(1, error->parameter.size()));
  }
  EXPECT_TRUE(std::holds_alternative<GenerationRequest>(parse_completion(
      R"({"prompt":"x","skip_special_tokens":true,"n_probs":0,"lora":[],"allowed_token_ids":null})")));
}

// Clients send the values at which their own server's sampler is off, and servers differ in these.
TEST(ParseCompletion, ASamplerIsOffAtEachValueAtWhichItDoesNothing) {
  for (const char* field :
       {R"("top_n_sigma":-1)", R"("top_n_sigma":0)", R"("nsigma":-1)", R"("typical_p":1.5)",
        R"("tfs":2)", R"("dynatemp_range":-1)", R"("n_probs":-1)", R"("t_max_predict_ms":-1)",
        R"("xtc_probability":-0.5)", R"("top_a":-1)", R"("cfg_scale":1)"}) {
    const auto parsed = parse_completion(std::string(R"({"prompt":"x",)") + field + "}");
    const auto* error = std::get_if<ApiError>(&parsed);
    EXPECT_EQ(error, nullptr) << error->message;
  }
  for (const char* field : {R"("top_n_sigma":1)", R"("typical_p":0.9)", R"("min_keep":2)",
                            R"("length_penalty":2)", R"("cfg_scale":1.5)", R"("tfs":0)"}) {
    EXPECT_TRUE(std::holds_alternative<ApiError>(
        parse_completion(std::string(R"({"prompt":"x",)") + field + "}")))
        << field;
  }
  // SillyTavern's own defaults, apart from texts and lengths.
  const auto parsed = parse_completion(
      R"({"prompt":"x","model":"m","stream":true,"temperature":0.7,"top_p":0.5,"top_k":40,"top_a":0,
          "typical_p":1,"typical":1,"min_p":0,"sampler_seed":-1,"repetition_penalty":1,"rep_pen":1,
          "frequency_penalty":0,"presence_penalty":0,"skew":0,"min_tokens":0,"length_penalty":1,
          "add_bos_token":true,"smoothing_factor":0,"smoothing_curve":1,"dry_allowed_length":2,
          "dry_multiplier":0,"dry_base":1.75,"dry_sequence_breakers":"[\"\\n\"]",
          "dry_penalty_last_n":0,"max_tokens_second":0,"stopping_strings":["U:"],"stop":["U:"],
          "truncation_length":2048,"ban_eos_token":false,"skip_special_tokens":true,
          "include_reasoning":true,"tfs":1,"mirostat_mode":0,"mirostat_tau":5,"mirostat_eta":0.1,
          "custom_token_bans":"","banned_strings":[],"api_type":"generic","xtc_threshold":0.1,
          "xtc_probability":0,"nsigma":0,"top_n_sigma":0,"min_keep":0,"adaptive_target":-0.01,
          "adaptive_decay":0.9,"repetition_penalty_range":0,"guidance_scale":1,"grammar":"",
          "negative_prompt":"","repeat_penalty":1,"repeat_last_n":0,"n_predict":9,"num_ctx":2048,
          "mirostat":0,"ignore_eos":false,"rep_pen_slope":1})");
  const auto* error = std::get_if<ApiError>(&parsed);
  EXPECT_EQ(error, nullptr) << error->message;
}

// AIPerf and other programs that measure servers send this.
TEST(ParseCompletion, ALeastNumberOfTokensDoesNothingWhereNothingEndsAnAnswer) {
  const auto refused = [](const std::string& fields) {
    const auto parsed = parse_completion(R"({"prompt":"x",)" + fields + "}");
    const auto* error = std::get_if<ApiError>(&parsed);
    return error == nullptr ? std::string() : error->parameter;
  };
  EXPECT_EQ(refused(R"("min_tokens":9,"max_tokens":9,"ignore_eos":true)"), "");
  EXPECT_EQ(refused(R"("min_tokens":9,"ignore_eos":true)"), "");
  EXPECT_EQ(refused(R"("min_new_tokens":9,"max_tokens":9,"ignore_eos":true)"), "");
  EXPECT_EQ(refused(R"("min_tokens":9,"max_tokens":9)"), "min_tokens");
  EXPECT_EQ(refused(R"("min_tokens":9,"max_tokens":8,"ignore_eos":true)"), "min_tokens");
  EXPECT_EQ(refused(R"("min_tokens":9,"ignore_eos":true,"stop":"x")"), "min_tokens");
  EXPECT_EQ(refused(R"("min_tokens":9,"ignore_eos":true,"stop_token_ids":[5])"), "min_tokens");
  EXPECT_EQ(refused(R"("min_tokens":9,"ignore_eos":true,"regex":"a+")"), "ignore_eos");
}

TEST(ParseCompletion, NewerServersNamesAreHonouredOrRefusedByName) {
  const auto read = [](const std::string& field) {
    return std::get<GenerationRequest>(parse_completion(R"({"prompt":"x",)" + field + "}"));
  };
  EXPECT_TRUE(read(R"("random_seed":7)").has_seed);
  EXPECT_EQ(read(R"("random_seed":7)").parameters.sampling.seed, 7U);
  EXPECT_EQ(read(R"("random_seed":7,"seed":8)").parameters.sampling.seed, 8U);
  using Kind = ipc::ConstraintKind;
  const std::string grammar = R"("grammar_string":"root ::= \"a\"")";
  const ipc::Constraint held{Kind::kGrammar, "root ::= \"a\"", "grammar_string"};
  EXPECT_EQ(read(grammar).parameters.constraint, held);
  // SillyTavern sends a grammar under both names.
  EXPECT_EQ(read(grammar + R"(,"grammar":"root ::= \"a\"")").parameters.constraint.text, held.text);
  EXPECT_EQ(read(R"("regex_pattern":"a+")").parameters.constraint,
            (ipc::Constraint{Kind::kRegex, "a+", "regex_pattern"}));
  const auto refused = [](const std::string& field) {
    const auto parsed = parse_completion(R"({"prompt":"x",)" + field + "}");
    const auto* error = std::get_if<ApiError>(&parsed);
    return error == nullptr ? std::string() : error->parameter;
  };
  EXPECT_EQ(refused(grammar + R"(,"grammar":"root ::= \"b\"")"), "grammar_string");
  EXPECT_EQ(refused(R"("random_seed":0.5)"), "random_seed");
  for (const char* field :
       {R"("enable_search":true)", R"("grammar_lazy":true)", R"("lora_path":"a")",
        R"("plugins":[{"id":"web"}])", R"("prompt_embeds":"AA==")", R"("response_prefix":"Sure")",
        R"("repetition_detection":{"max_pattern_size":4})", R"("safe_prompt":true)",
        R"("search_parameters":{"mode":"on"})", R"("token_healing":true)"}) {
    const std::string parameter = refused(field);
    EXPECT_EQ(parameter, std::string(field).substr(1, parameter.size()));
    EXPECT_FALSE(parameter.empty()) << field;
  }
  EXPECT_EQ(refused(R"("enable_search":false,"grammar_lazy":false,"safe_prompt":false,"plugins":[],
                       "response_prefix":"","lora_path":null,"token_healing":false)"),
            "");
}

TEST(ParseChat, ToolsThatMustNotBeUsedAndAnswersWithoutContent) {
  const auto parsed = parse_chat(
      R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null},
                      {"role":"user","content":"b"}],
          "tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none"})");
  ASSERT_TRUE(std::holds_alternative<GenerationRequest>(parsed))
      << std::get<ApiError>(parsed).message;
  const auto& prompt = std::get<GenerationRequest>(parsed).prompts.at(0);
  EXPECT_FALSE(json::parse(std::get<ipc::ChatPrompt>(prompt).json).contains("tools"));
}

// Templates show tools to models, so the order of keys and the form of numbers must be the client's.
TEST(ParseChat, WhatTheTemplateReadsIsAsItWasWritten) {
  const auto parsed = parse_chat(
      R"({ "tools" : [{"type":"function","function":{"name":"f","parameters":{"z":1.0,"a":"}\"]"}}}] ,"temperature":1,
          "messages":[],"mess\u0061ges":[{"role":"user","content":"\ud83d\ude00 ]"}],"parallel_tool_calls":false})");
  ASSERT_TRUE(std::holds_alternative<GenerationRequest>(parsed))
      << std::get<ApiError>(parsed).message;
  const auto& request = std::get<GenerationRequest>(parsed);
  EXPECT_EQ(
      std::get<ipc::ChatPrompt>(request.prompts.at(0)).json,
      R"({"messages":[{"role":"user","content":"\ud83d\ude00 ]"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"z":1.0,"a":"}\"]"}}}]})");
  EXPECT_TRUE(request.parameters.one_call);
}

TEST(ParseChat, ToolsMayHaveManyMembersAndNotAnyNumber) {
  const auto with = [](int members) {
    std::string body =
        R"({"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{)";
    for (int i = 0; i < members; ++i)
      body += fmt::format("{}\"k{}\":{{}}", i == 0 ? "" : ",", i);
    return parse_chat(body + "}}}}]}");
  };
  EXPECT_TRUE(std::holds_alternative<GenerationRequest>(with(4000)));
  EXPECT_EQ(std::get<ApiError>(with(5000)).parameter, "tools");
}

// Where members keep their order, each one is compared with all before it: a million members would take hours.
TEST(ParseChat, ManyMembersBesideASchemaCostNothingAndInItAreRefused) {
  std::string many;
  for (int i = 0; i < 200'000; ++i)
    many += fmt::format("{}\"k{}\":1", i == 0 ? "" : ",", i);
  const std::string chat = R"({"messages":[{"role":"user","content":"x"}],)";
  const auto beside = parse_chat(
      chat + R"("response_format":{"type":"json_schema","json_schema":{"schema":{"z":1,"a":2}}},)" +
      R"("metadata":{)" + many + "}}");
  EXPECT_EQ(std::get<GenerationRequest>(beside).parameters.constraint.text, R"({"z":1,"a":2})");
  const auto within = parse_chat(chat + R"("json_schema":{"properties":{)" + many + "}}}");
  EXPECT_EQ(std::get<ApiError>(within).parameter, "json_schema");
  const auto tool = parse_chat(
      chat + R"("tools":[{"type":"function","function":{"name":"f"},"x":{)" + many + "}}]}");
  EXPECT_EQ(std::get<ApiError>(tool).parameter, "tools");
}

TEST(ParseCompletion, SeveralPrompts) {
  EXPECT_EQ(
      std::get<GenerationRequest>(parse_completion(R"({"prompt":["a","b","c"]})")).prompts.size(),
      3U);
  EXPECT_EQ(
      std::get<GenerationRequest>(parse_completion(R"({"prompt":[[1],[2,3]]})")).prompts.size(),
      2U);
}

TEST(ParseChat, RolesAndParts) {
  auto request = std::get<GenerationRequest>(parse_chat(
      R"({"messages":[{"role":"developer","content":"d"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],
          "logprobs":true,"top_logprobs":4,"max_tokens":3,"max_completion_tokens":9})"));
  const json chat = json::parse(std::get<ipc::ChatPrompt>(request.prompts.at(0)).json);
  EXPECT_EQ(chat["messages"][0]["role"], "developer");
  EXPECT_EQ(chat["messages"][1]["content"][1]["text"], "b");
  EXPECT_EQ(chat.size(), 1U);
  EXPECT_EQ(request.parameters.logprobs, 4);
  EXPECT_EQ(request.parameters.max_tokens, 9U);
}

TEST(ParseTokenize, NamesOfItsText) {
  for (const char* body : {R"({"content":"a"})", R"({"text":"a"})", R"({"prompt":"a"})"}) {
    EXPECT_EQ(std::get<TokenizeRequest>(parse_tokenize(body)).message.text, "a") << body;
  }
  auto request = std::get<TokenizeRequest>(
      parse_tokenize(R"({"content":"","add_special":false,"parse_special":false})"));
  EXPECT_FALSE(request.message.add_special || request.message.parse_special);
  EXPECT_EQ(std::get<ApiError>(parse_tokenize("{}")).parameter, "prompt");
  const auto texts_of = [](const char* name) {
    const auto parsed = parse_tokenize(R"({"content":"a",")" + std::string(name) + "\":true}");
    return std::get<TokenizeRequest>(parsed).message.texts;
  };
  EXPECT_EQ(request.message.texts, ipc::TokenTexts::kNone);
  EXPECT_EQ(texts_of("with_pieces"), ipc::TokenTexts::kPieces);
  EXPECT_EQ(texts_of("return_token_strs"), ipc::TokenTexts::kVocabulary);
  EXPECT_EQ(std::get<ApiError>(parse_detokenize(R"({"tokens":["a"]})")).parameter, "tokens");
  EXPECT_EQ(
      std::get<DetokenizeRequest>(parse_detokenize(R"({"tokens":[1]})")).message.tokens.size(), 1U);
}

}  // namespace
}  // namespace bulkhead::orchestrator
