// Takes any bytes as a model file: opens it, reads the shape, the tokenizer and the template, and describes it.
#include <cstddef>
#include <cstdint>
#include <span>

#include "config/base/log.hpp"
#include "worker/model/architecture.hpp"
#include "worker/model/gguf.hpp"
#include "worker/model/inspect.hpp"
#include "worker/model/template_file.hpp"
#include "worker/model/tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace bulkhead::model;
  spdlog::set_level(spdlog::level::off);
  auto file = GgufFile::from_memory(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file.ok()) return 0;
  (void)read_model(**file);
  (void)describe(**file, true);
  (void)load_chat(**file);
  auto tokenizer = Tokenizer::from_gguf(**file);
  if (tokenizer.ok()) {
    const auto ids =
        (*tokenizer)->encode("Hello, <|im_end|> 1234 w\xC3\xB6rld\xFF\n\n", true, true);
    (void)(*tokenizer)->decode(ids);
  }
  return 0;
}
