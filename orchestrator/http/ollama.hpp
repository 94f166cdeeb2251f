// Ollama's API. These functions parse a request's bytes into a checked chat or completion, render an answer's parts
// as lines of JSON, and describe models as Ollama's clients list them. They use no sockets and no workers; only the
// functions that make answers read the clock.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "orchestrator/http/dialect.hpp"

namespace bulkhead::orchestrator {

enum class OllamaCall {
  kChat,      // POST /api/chat
  kGenerate,  // POST /api/generate
};

struct OllamaRequest {
  OllamaCall call = OllamaCall::kChat;
  // A request without messages or a prompt asks the server to load the model, or, with a keep_alive of 0, to
  // unload it; `wanted` then has only the model's name.
  bool load_only = false;
  bool unload = false;
  GenerationRequest wanted = {};
};
Parsed<OllamaRequest> parse_ollama_chat(std::string_view body);
Parsed<OllamaRequest> parse_ollama_generate(std::string_view body);
// Returns the model that POST /api/show names.
Parsed<std::string> parse_ollama_name(std::string_view body);

std::unique_ptr<Dialect> ollama_dialect(OllamaCall call);
// Renders the answer to a request that only asks the server to load or unload a model. `reason`:
// "load" or "unload".
std::string ollama_loaded_body(OllamaCall call, const std::string& model, const char* reason);
// Renders {"error": TEXT} with the error's status.
HttpResponse ollama_refusal(const ApiError& error, std::string_view request_id = {});

// These render the answers to GET /api/tags and GET /api/ps, and to POST /api/show for one model.
nlohmann::json ollama_tags(const Router& router);
nlohmann::json ollama_ps(const Router& router);
nlohmann::json ollama_show(const ModelInfo& model);
// The version of Ollama whose API the server speaks. Clients read it to learn which features they may use.
inline constexpr const char* kOllamaVersion = "0.12.6";

}  // namespace bulkhead::orchestrator
