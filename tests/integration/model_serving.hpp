// A daemon with the real worker and a real model on the CPU's Vulkan device, and functions that compare its answers.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tests/integration/serving.hpp"
#include "tests/support/signals.hpp"

namespace bulkhead::test {

// `others`: workers besides the model's first one, which tests' kernels are lent to as well.
inline Serving serve_model(const std::string& model, const std::vector<std::string>& settings = {},
                           std::map<std::string, std::string> environment = {},
                           std::vector<std::string> arguments = {},
                           std::vector<std::string> others = {}) {
  Daemon::Options options;
  options.environment = std::move(environment);
  options.arguments = std::move(arguments);
  options.computing_workers = std::move(others);
  options.computing_workers.push_back(
      (model.empty() ? "builtin" : std::filesystem::path(model).stem().string()) + "-0");
  if (!model.empty()) options.arguments.insert(options.arguments.end(), {"--model", model});
  for (const std::string& setting : settings)
    options.arguments.insert(options.arguments.end(), {"--set", setting});
  Serving serving;
  serving.daemon = std::make_unique<Daemon>(std::string(BULKHEAD_BIN_DIR) + "/bulkheadd", options);
  serving.port = serving.daemon->wait_until_listening();
  EXPECT_NE(serving.port, 0) << serving.daemon->log();
  return serving;
}

// One choice, whether it was streamed or not.
struct Answer {
  int status = 0;
  std::string text;
  std::vector<std::uint32_t> prompt_ids, ids;
  std::vector<double> logprobs;
  std::string finish_reason;
  json usage;
  bool operator==(const Answer&) const = default;
};

inline void add_choice(Answer& answer, const json& choice) {
  answer.text += choice.at("text").get<std::string>();
  if (choice.contains("prompt_token_ids")) choice.at("prompt_token_ids").get_to(answer.prompt_ids);
  if (choice.contains("token_ids") && choice.at("token_ids").is_array()) {
    for (std::uint32_t id : choice.at("token_ids"))
      answer.ids.push_back(id);
  }
  if (choice.contains("logprobs") && choice.at("logprobs").is_object()) {
    for (double logprob : choice.at("logprobs").at("token_logprobs"))
      answer.logprobs.push_back(logprob);
  }
  if (choice.at("finish_reason").is_string())
    choice.at("finish_reason").get_to(answer.finish_reason);
}

// Removes the numbers of guesses, because they depend on how long the worker's steps took.
inline json without_guesses(json usage) {
  if (!usage.contains("completion_tokens_details")) return usage;
  json& details = usage["completion_tokens_details"];
  details.erase("accepted_prediction_tokens");
  details.erase("rejected_prediction_tokens");
  if (details.empty()) usage.erase("completion_tokens_details");
  return usage;
}

inline Answer answer_of(const HttpReply& reply) {
  Answer answer;
  answer.status = reply.status;
  if (reply.status != 200) {
    ADD_FAILURE() << reply.status << " " << reply.body;
    return answer;
  }
  if (reply.headers.at("content-type").starts_with("text/event-stream")) {
    Events events = events_of(reply.body);
    EXPECT_TRUE(events.done);
    for (const json& chunk : events.chunks) {
      EXPECT_FALSE(chunk.contains("error")) << chunk;
      if (chunk.contains("prompt_token_ids"))
        chunk.at("prompt_token_ids").get_to(answer.prompt_ids);
      for (const json& choice : chunk.at("choices"))
        add_choice(answer, choice);
      if (chunk.contains("usage") && chunk.at("usage").is_object())
        answer.usage = without_guesses(chunk.at("usage"));
    }
  } else {
    const json body = json::parse(reply.body);
    if (body.contains("prompt_token_ids")) body.at("prompt_token_ids").get_to(answer.prompt_ids);
    add_choice(answer, body.at("choices").at(0));
    answer.usage = without_guesses(body.at("usage"));
  }
  return answer;
}

// Returns the request with fields that ask for everything that an Answer holds.
inline json asking_for_all(json request) {
  request["return_token_ids"] = true;
  if (request.value("stream", false)) request["stream_options"] = {{"include_usage", true}};
  return request;
}

inline Answer complete(const Serving& serving, const json& request) {
  return answer_of(serving.complete(asking_for_all(request)));
}

// Reads a stream and kills its worker once `chunks` chunks of it have come.
inline Answer complete_over_a_kill(const Serving& serving, const json& request, int chunks) {
  HttpClient client(serving.port);
  EXPECT_TRUE(client.send("POST", "/v1/completions", asking_for_all(request).dump()));
  HttpReply reply = client.receive_head();
  for (int i = 0; i < chunks; ++i)
    reply.body += client.receive_chunk().value_or("");
  EXPECT_EQ(send_signal(serving.worker().at("pid").get<pid_t>(), SIGKILL), 0);
  while (auto chunk = client.receive_chunk()) {
    if (chunk->empty()) break;
    reply.body += *chunk;
  }
  return answer_of(reply);
}

// Positions in a page of the KV cache.
inline constexpr std::uint64_t kPageTokens = 32;

// A request for `tokens` tokens at temperature 0, with log-probabilities.
inline json greedy_request(const std::vector<std::uint32_t>& prompt, int tokens) {
  return {{"prompt", prompt},
          {"temperature", 0},
          {"max_tokens", tokens},
          {"ignore_eos", true},
          {"logprobs", 2}};
}

// Returns how many of the prompt's tokens came from the prefix cache.
inline std::uint64_t cached_tokens(const Answer& answer) {
  return answer.usage.at("prompt_tokens_details").at("cached_tokens");
}

// Asks for 40 tokens after a prompt of 100, and again after the prompt and the first 20 of these. The second answer
// goes on from the state that was saved within the prompt, with the tokens of the first answer. Returns the first.
inline Answer expect_to_go_on_from_a_saved_state(const Serving& serving,
                                                 const std::vector<std::uint32_t>& prompt) {
  const Answer first = complete(serving, greedy_request(prompt, 40));
  EXPECT_EQ(cached_tokens(first), 0U);
  // This prompt begins with a part of the answer, so the first prompt's saved state is the last one that both share.
  std::vector<std::uint32_t> longer = prompt;
  longer.insert(longer.end(), first.ids.begin(), first.ids.begin() + 20);
  const Answer second = complete(serving, greedy_request(longer, 8));
  EXPECT_EQ(cached_tokens(second), 2 * kPageTokens);
  EXPECT_EQ(second.ids, std::vector(first.ids.begin() + 20, first.ids.begin() + 28));
  EXPECT_EQ(second.logprobs, std::vector(first.logprobs.begin() + 20, first.logprobs.begin() + 28));
  return first;
}

}  // namespace bulkhead::test
