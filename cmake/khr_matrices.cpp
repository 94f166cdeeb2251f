// Makes of a SPIR-V module with cooperative matrices by SPV_NV_cooperative_matrix, which Debian's
// glslc can write, one by SPV_KHR_cooperative_matrix, which drivers make better code of: a matrix
// of the extension by NVIDIA does not say whether it is a product's first or second factor, so that
// the driver must turn the second before each multiplication.
//
//   khr-matrices IN OUT     both are lists of numbers, as `glslc -mfmt=num` writes them; they may be one file
//
// A matrix's type shows its use: halves of 16 x 16 are first factors, halves of 16 x 8 are second
// factors, and floats are sums. Loads, stores and lengths are not translated, because kernels fill
// matrices entry by entry and have the number of a lane's entries as a constant (NVIDIA's driver
// 580.159.04 crashes on a length as a constant). (The numbers of instructions and capabilities are
// those of the SPIR-V registry.)
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace {

using Words = std::vector<std::uint32_t>;

enum Op : std::uint32_t {
  kExtension = 10,
  kCapability = 17,
  kTypeInt = 21,
  kTypeFloat = 22,
  kConstant = 43,
  kSpecConstantOp = 52,
  kTypeMatrixNv = 5358,
  kLoadNv = 5359,
  kStoreNv = 5360,
  kMultiplyAddNv = 5361,
  kLengthNv = 5362,
  kTypeMatrixKhr = 4456,
  kMultiplyAddKhr = 4459,
};
constexpr std::uint32_t kCapabilityNv = 5357, kCapabilityKhr = 6022;
constexpr std::size_t kHeader = 5, kBound = 3;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "khr-matrices: %s\n", why.c_str());
  std::exit(1);
}

Words read(const char* path) {
  std::ifstream file(path);
  if (!file) fail(std::string("can't read ") + path);
  Words words;
  std::string number;
  while (std::getline(file, number, ',')) {
    if (number.find_first_of("0123456789") == std::string::npos) continue;
    words.push_back(static_cast<std::uint32_t>(std::stoul(number, nullptr, 0)));
  }
  if (words.size() < kHeader || words[0] != 0x07230203) fail(std::string(path) + " has no SPIR-V");
  return words;
}

// An extension's name, as the words of its instruction have it: four characters a word, then zeros.
Words name_words(const std::string& name) {
  Words words(name.size() / 4 + 1, 0);
  for (std::size_t i = 0; i < name.size(); ++i)
    words[i / 4] |= static_cast<std::uint32_t>(static_cast<unsigned char>(name[i])) << (i % 4 * 8);
  return words;
}

[[noreturn]] void refuse() {
  fail("loads, stores and lengths of matrices are not translated");
}

class Translation {
 public:
  explicit Translation(const Words& in) : in_(in), out_(in.begin(), in.begin() + kHeader) {
    for (std::size_t at = kHeader; at < in_.size(); at += in_[at] >> 16) {
      const std::size_t length = in_[at] >> 16;
      if (length == 0 || at + length > in_.size()) fail("an instruction is cut short");
      translate(in_[at] & 0xffffU, Words(in_.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                                         in_.begin() + static_cast<std::ptrdiff_t>(at + length)));
    }
    if (!uses_) fail("there are no matrices");
  }
  const Words& words() const { return out_; }

 private:
  void put(std::uint32_t op, const Words& operands) {
    out_.push_back(static_cast<std::uint32_t>(operands.size() + 1) << 16 | op);
    out_.insert(out_.end(), operands.begin(), operands.end());
  }

  // Constants of the three uses: 0, 1 and 2.
  void put_uses(std::uint32_t integer_type) {
    uses_ = out_[kBound];
    out_[kBound] += 3;
    for (std::uint32_t use = 0; use < 3; ++use)
      put(kConstant, {integer_type, *uses_ + use, use});
  }

  void translate(std::uint32_t op, Words operands) {
    switch (op) {
      case kCapability:
        if (operands[0] == kCapabilityNv) operands[0] = kCapabilityKhr;
        return put(op, operands);
      case kExtension:
        if (operands == name_words("SPV_NV_cooperative_matrix"))
          operands = name_words("SPV_KHR_cooperative_matrix");
        return put(op, operands);
      case kTypeFloat:
        float_bits_[operands[0]] = operands[1];
        return put(op, operands);
      case kConstant:
        constants_[operands[1]] = {operands[0], operands[2]};
        return put(op, operands);
      case kTypeMatrixNv: {  // result, component, scope, rows, columns
        const std::uint32_t columns = constants_.at(operands[4]).value;
        if (!uses_) put_uses(constants_.at(operands[2]).type);
        const bool halves = float_bits_.at(operands[1]) == 16;
        operands.push_back(*uses_ + (!halves ? 2 : columns == 16 ? 0 : 1));
        return put(kTypeMatrixKhr, operands);
      }
      case kMultiplyAddNv:
        return put(kMultiplyAddKhr, operands);
      case kSpecConstantOp:  // type, result, instruction: a length is asked for so
        if (operands[2] == kLengthNv) refuse();
        return put(op, operands);
      case kLengthNv:
      case kLoadNv:
      case kStoreNv:
        refuse();
      default:
        return put(op, operands);
    }
  }

  struct Constant {
    std::uint32_t type, value;
  };
  const Words& in_;
  Words out_;
  std::optional<std::uint32_t> uses_;
  std::map<std::uint32_t, std::uint32_t> float_bits_;
  std::map<std::uint32_t, Constant> constants_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) fail("usage: khr-matrices IN OUT");
  const Words in = read(arguments[1]);
  const Translation translation(in);
  std::ofstream file(arguments[2]);
  for (const std::uint32_t word : translation.words())
    file << word << ",\n";
  file.close();
  if (!file) fail(std::string("can't write ") + arguments[2]);
}
