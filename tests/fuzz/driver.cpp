// Runs a libFuzzer entry point without libFuzzer: with every file of the corpus, then with mutations of them.
//
//   NAME [--runs=N] [--seed=S] [--max-bytes=B] [--only=K] CORPUS...
//
// Mutation K depends on the corpus, S and K alone: a failure names K, and --only=K runs it again. The variable
// BULKHEAD_FUZZ_TIMES=T makes T times as many mutations.
// Nothing guides the mutations (that is libFuzzer's art); they keep found bugs found.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));

namespace {

using Bytes = std::vector<std::uint8_t>;

char running[512] = "start";  // printed when the input kills this process

void say_running() {
  const char head[] = "fuzz driver: failed on ";
  (void)!::write(2, head, sizeof head - 1);
  (void)!::write(2, running, std::strlen(running));
  (void)!::write(2, "\n", 1);
}

void on_signal(int number) {
  say_running();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

constexpr unsigned kPatience = 200;  // seconds that an input may take: far more than any needs

void run(const Bytes& input) {
  ::alarm(kPatience);  // ends, and names, a call that waits for ever
  // An allocation of the exact size, so that AddressSanitizer sees a read past the end.
  std::vector<std::uint8_t> exact(input);
  exact.shrink_to_fit();
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

Bytes mutate(const std::vector<Bytes>& corpus, std::uint64_t seed, std::uint64_t index,
             std::size_t max_bytes) {
  std::mt19937_64 random(seed * 0x9E3779B97F4A7C15U + index);
  const auto below = [&](std::size_t limit) { return limit == 0 ? 0 : random() % limit; };
  Bytes input = corpus[below(corpus.size())];
  static constexpr std::uint64_t kInteresting[] = {
      0,          1,          2,          7,          8,
      127,        128,        255,        256,        4095,
      4096,       65535,      65536,      0x7FFFFFFF, 0x80000000,
      0xFFFFFFFF, 0xFFFFFFF8, 0x20000000, ~0ULL,      0x8000000000000000U};
  for (std::size_t edits = 1 + below(8); edits > 0; --edits) {
    const std::size_t at = below(input.size());
    switch (below(8)) {
      case 0:
        if (!input.empty()) input[at] ^= static_cast<std::uint8_t>(1U << below(8));
        break;
      case 1:
        if (!input.empty()) input[at] = static_cast<std::uint8_t>(random());
        break;
      case 2:
      case 3: {  // an interesting integer of 1, 2, 4 or 8 bytes
        const std::size_t width = std::size_t{1} << below(4);
        const std::uint64_t value = kInteresting[below(std::size(kInteresting))];
        if (input.size() >= width) {
          std::memcpy(&input[below(input.size() - width + 1)], &value, width);
        }
        break;
      }
      case 4:
        input.resize(at);
        break;
      case 5: {  // a block of another file over or into this one
        const Bytes& other = corpus[below(corpus.size())];
        if (other.empty()) break;
        const std::size_t from = below(other.size());
        const std::size_t size = 1 + below(std::min<std::size_t>(other.size() - from, 64));
        const auto block = other.begin() + static_cast<std::ptrdiff_t>(from);
        if (below(2) == 0 && at + size <= input.size()) {
          std::copy_n(block, size, input.begin() + static_cast<std::ptrdiff_t>(at));
        } else {
          input.insert(input.begin() + static_cast<std::ptrdiff_t>(at), block,
                       block + static_cast<std::ptrdiff_t>(size));
        }
        break;
      }
      case 6:
        input.insert(input.end(), 1 + below(32), static_cast<std::uint8_t>(random()));
        break;
      default: {  // small arithmetic on a byte
        if (!input.empty()) input[at] = static_cast<std::uint8_t>(input[at] + below(33) - 16);
      }
    }
  }
  if (input.size() > max_bytes) input.resize(max_bytes);
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = 1000, seed = 1, only = ~0ULL;
  std::size_t max_bytes = 4096;
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto number = [&](const char* name, auto& value) {
      if (argument.rfind(name, 0) != 0) return false;
      value = std::stoull(argument.substr(std::strlen(name)));
      return true;
    };
    if (number("--runs=", runs) || number("--seed=", seed) || number("--only=", only) ||
        number("--max-bytes=", max_bytes)) {
      continue;
    }
    if (std::filesystem::is_directory(argument)) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(argument)) {
        if (entry.is_regular_file()) files.push_back(entry.path());
      }
    } else if (std::filesystem::is_regular_file(argument)) {
      files.emplace_back(argument);
    } else {
      std::fprintf(stderr, "fuzz driver: %s is neither a file nor a directory\n", argument.c_str());
      return 2;
    }
  }
  if (files.empty()) {
    std::fprintf(stderr, "fuzz driver: the corpus is empty; give a file or a directory\n");
    return 2;
  }
  if (const char* const times = std::getenv("BULKHEAD_FUZZ_TIMES"); times != nullptr)
    runs *= std::max<std::uint64_t>(1, std::strtoull(times, nullptr, 10));
  std::signal(SIGALRM, on_signal);
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    if (__sanitizer_set_death_callback == nullptr) std::signal(number, on_signal);
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(say_running);

  std::sort(files.begin(), files.end());
  std::vector<Bytes> corpus;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  try {
    for (std::size_t i = 0; i < corpus.size() && only == ~0ULL; ++i) {
      std::snprintf(running, sizeof running, "%s", files[i].c_str());
      run(corpus[i]);
    }
    for (std::uint64_t index = 0; index < runs; ++index) {
      if (only != ~0ULL && only != index) continue;
      std::snprintf(running, sizeof running, "mutation --seed=%llu --only=%llu",
                    static_cast<unsigned long long>(seed), static_cast<unsigned long long>(index));
      run(mutate(corpus, seed, index, max_bytes));
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "fuzz driver: an exception escaped: %s\n", e.what());
    say_running();
    return 1;
  }
  std::printf("%zu corpus files and %llu mutations, no finding\n", corpus.size(),
              static_cast<unsigned long long>(only == ~0ULL ? runs : 1));
  return 0;
}
