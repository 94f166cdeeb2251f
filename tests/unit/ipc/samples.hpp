// Messages for tests and for the fuzzers' corpus: every kind, with every field set.
#pragma once

#include <string>
#include <vector>

#include "ipc/messages.hpp"

namespace bulkhead::ipc::test {

inline TokenBatch sample_batch(std::size_t sequences, std::size_t tokens, bool logprobs) {
  TokenBatch batch;
  batch.step = 77;
  for (std::size_t i = 0; i < sequences; ++i) {
    SequenceTokens s;
    s.request = RequestId{100 + i};
    s.first_index = static_cast<std::uint32_t>(10 * i);
    for (std::size_t t = 0; t < tokens; ++t) {
      s.tokens.push_back(static_cast<TokenId>(1000 + t));
      s.text += t % 2 == 0 ? " word" : " \u00e9\u4e2d\U0001F600";
      if (!logprobs) continue;
      TokenLogprob l;
      l.logprob = -0.5F;
      l.bytes = "\xE4\xB8";  // part of a character
      l.top = {{1000, -0.5F, "\xE4\xB8"}, {7, -1.25F, "a"}};
      s.logprobs.push_back(l);
    }
    batch.sequences.push_back(s);
  }
  return batch;
}

inline std::vector<FromWorker> samples_from_worker() {
  Ready ready;
  ready.model_name = "tiny \u00fcber";
  ready.architecture = "llama";
  ready.device = "llvmpipe";
  ready.numerics_id = "abc";
  ready.context_limit = 4096;
  ready.vocabulary_size = 2048;
  ready.kv_cache_tokens = 1 << 20;
  ready.weight_bytes = 7ULL << 30;
  ready.load_milliseconds = 1234;
  ready.has_chat_template = true;
  ready.chat_template = "chatml";
  ready.capabilities = {"completion", "tools"};
  ready.optimizations = {{"memory_pool", true, ""}, {"blit_queue", false, "one queue only"}};
  ready.protections = {{"landlock", true, "version 7"},
                       {"user_namespace", false, "unshare: EPERM"}};
  ready.vault = {VaultState::kImported, "no \u00e9", 84000, 2100, 700, 126};
  ready.template_source = "{{ messages }}\n";
  ready.bos_token = "<s>";
  ready.eos_token = "</s>";
  ready.facts = {7615616512, "7.6B", "Q4_K_M"};
  ready.sampling = {{"temperature", 0.6}, {"top_k", 20}};
  return {
      Hello{protocol_version(), 4242, "bulkhead 0.1.0"},
      Progress{"reading weights", 10, 100},
      ready,
      Accepted{RequestId{1}, {1, 2, 3, 4, 5}, 64, {"a warning"}},
      sample_batch(3, 2, false),
      sample_batch(1, 5, true),
      TokenBatch{},
      Finished{RequestId{2},
               FinishReason::kLength,
               "rest \u00e9",
               5,
               6,
               7000,
               8000,
               4,
               {},
               2,
               3,
               9,
               "END"},
      Failed{RequestId{3}, FailureCode::kContextExceeded, "too long", "prompt"},
      Tokenized{RequestId{4}, {9, 8, 7}, TokenTexts::kPieces, {{"any\xFF"}, {""}, {"\u00e9"}}},
      Detokenized{RequestId{5}, std::string("any\xFF\x00 bytes", 11)},
      Stats{11, 2, 3, 4, 5, {{"steps_total", 11.0}, {"tokens_total", 0.5}}},
      Pong{99},
      Fatal{"device lost"},
      Drained{},
      VaultOffer{5, 1, 17},
      VaultSlab{5, {3, 4096}, true},
      AppliedTemplate{RequestId{6}, "<s>hi", {"no tools"}},
      CheckedConstraint{RequestId{9}},
      Embedded{RequestId{9}, 2, {0.5F, -1.25F}},
      Ranked{RequestId{10}, 30, 0.75F},
      PromptTokens{RequestId{8}, 3, {{-0.5F, "\xC3", {{7, -0.25F, "a"}}}, {0, "b", {}}}},
  };
}

inline std::vector<ToWorker> samples_to_worker() {
  Submit text;
  text.request = RequestId{1};
  text.prompt = std::string("once\0upon a time", 16);
  text.sampling = {0.7F, 0.9F, 40, 0.05F, 1.1F, 0.2F, 0.3F, 0xFEEDFACECAFEBEEFULL};
  text.max_tokens = 128;
  text.stop = {"\n\n", "", "END"};
  text.logprobs = 5;
  text.ignore_eos = true;
  text.accepted_tokens = {4, 5, 6};
  text.constraint = {ConstraintKind::kRegex, "[a-z]+ \u00e9", "regex"};
  text.logit_bias = {{7, -100.0F}, {8, 1.5F}};
  text.stop_tokens = {11, 12};
  text.tell_prompt = text.prompt_only = text.count_only = true;
  text.tool_choice = ToolChoice::kNamed;
  text.tool_name = "get_weather";
  text.reasoning_budget = 512;
  text.allowed_tools = {"get_weather", "get_time"};
  Submit tokens;
  tokens.request = RequestId{2};
  tokens.prompt = std::vector<TokenId>{1, 2, 3};
  Submit no_tokens;
  no_tokens.prompt = std::vector<TokenId>{};
  Submit chat;
  chat.request = RequestId{3};
  chat.prompt = ChatPrompt{R"({"messages":[{"role":"user","content":"hi"}]})", 1768478400};
  Submit old_chat;
  old_chat.prompt = std::vector<ChatMessage>{{"system", "be brief"}, {"user", "hi \xC3"}};
  Submit infill;
  infill.prompt = InfillPrompt{"def f(", "):", {{"a.py", "x = 1"}, {}}};
  return {
      text,
      tokens,
      no_tokens,
      chat,
      old_chat,
      infill,
      Cancel{RequestId{4}},
      Tokenize{RequestId{5}, "some text", false, true},
      Detokenize{RequestId{6}, {1, 2}},
      Ping{12},
      Vault{3, 2, 19, true, true, {{4, 8192}, {6, 0}}},
      Vault{},
      Drain{},
      Shutdown{},
      Profile{},
      Promote{true, true},
      Settled{},
      ApplyTemplate{RequestId{7}, {"{}", 5}},
      CheckConstraint{RequestId{9}, {ConstraintKind::kRegex, "[ab]+", "regex"}},
      Embed{RequestId{9}, std::string("a text")},
      Embed{RequestId{10}, std::vector<TokenId>{3, 4}},
      Rank{RequestId{11}, "what is it?", "a text \xC3"},
  };
}

}  // namespace bulkhead::ipc::test
