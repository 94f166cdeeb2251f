#include "worker/constrain/char_classes.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

namespace bulkhead::constrain {
namespace {

using Ranges = std::vector<std::pair<char32_t, char32_t>>;

// Outside ASCII: the first bytes and the characters of each class. Greek, Cyrillic, Hebrew and Arabic are apart from
// their neighbours; so are the blocks with blanks and line ends (C2, E1, E2, E3) and the end of the surrogates' gap.
struct Block {
  unsigned char first, last;
  char32_t low, high;
};
constexpr std::array<Block, 21> kBlocks = {{
    {0xC2, 0xC2, 0x80, 0xBF},     {0xC3, 0xC3, 0xC0, 0xFF},       {0xC4, 0xC9, 0x100, 0x27F},
    {0xCA, 0xCD, 0x280, 0x37F},   {0xCE, 0xCF, 0x380, 0x3FF},     {0xD0, 0xD3, 0x400, 0x4FF},
    {0xD4, 0xD7, 0x500, 0x5FF},   {0xD8, 0xDB, 0x600, 0x6FF},     {0xDC, 0xDF, 0x700, 0x7FF},
    {0xE0, 0xE0, 0x800, 0xFFF},   {0xE1, 0xE1, 0x1000, 0x1FFF},   {0xE2, 0xE2, 0x2000, 0x2FFF},
    {0xE3, 0xE3, 0x3000, 0x3FFF}, {0xE4, 0xE9, 0x4000, 0x9FFF},   {0xEA, 0xEA, 0xA000, 0xAFFF},
    {0xEB, 0xEC, 0xB000, 0xCFFF}, {0xED, 0xED, 0xD000, 0xD7FF},   {0xEE, 0xEE, 0xE000, 0xEFFF},
    {0xEF, 0xEF, 0xF000, 0xFFFF}, {0xF0, 0xF0, 0x10000, 0x3FFFF}, {0xF1, 0xF4, 0x40000, 0x10FFFF},
}};

struct Table {
  std::array<std::uint8_t, 256> of_byte = {};
  std::array<Ranges, kClassCount> ranges;
  std::array<CharClass, kClassCount> classes;

  void name(std::uint32_t number, char low, char high) {
    ranges[number].emplace_back(low, high);
    for (int byte = low; byte <= high; ++byte)
      of_byte[static_cast<std::size_t>(byte)] = static_cast<std::uint8_t>(number);
  }

  Table() {
    of_byte.fill(kNoCharacter);
    std::uint32_t number = 0;
    for (const auto& [low, high] :
         {std::pair('0', '9'), {'a', 'f'}, {'g', 'z'}, {'A', 'F'}, {'G', 'Z'}})
      name(number++, low, high);
    for (const char sign : std::string_view("\t\n\r !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"))
      name(number++, sign, sign);
    for (const auto& [low, high] :
         {std::pair('\0', '\x08'), {'\x0B', '\x0C'}, {'\x0E', '\x1F'}, {'\x7F', '\x7F'}})
      name(number, low, high);
    ++number;
    for (const Block& block : kBlocks) {
      ranges[number].emplace_back(block.low, block.high);
      for (std::size_t byte = block.first; byte <= block.last; ++byte)
        of_byte[byte] = static_cast<std::uint8_t>(number);
      classes[number].first = block.first;
      classes[number].last = block.last;
      ++number;
    }
    for (std::uint32_t i = 0; i < number; ++i) {
      CharClass& made = classes[i];
      made.ranges = ranges[i];
      made.ascii = ranges[i].front().first < 0x80;
      made.single = ranges[i].size() == 1 && ranges[i][0].first == ranges[i][0].second;
      made.sample = utf8(ranges[i].front().first);
    }
  }

  static std::string utf8(char32_t code) {
    const auto rest = [code](int shift) {
      return static_cast<char>(0x80 | (code >> shift & 0x3F));
    };
    if (code < 0x80) return {static_cast<char>(code)};
    if (code < 0x800) return {static_cast<char>(0xC0 | code >> 6), rest(0)};
    if (code < 0x10000) return {static_cast<char>(0xE0 | code >> 12), rest(6), rest(0)};
    return {static_cast<char>(0xF0 | code >> 18), rest(12), rest(6), rest(0)};
  }
};

const Table& table() {
  static const Table made;
  return made;
}

}  // namespace

std::uint32_t class_of(unsigned char first_byte) {
  return table().of_byte[first_byte];
}

const CharClass& char_class(std::uint32_t number) {
  return table().classes[number];
}

std::optional<std::uint32_t> reached_alike(const Dfa::State& from, const CharClass& all) {
  std::optional<std::uint32_t> to;
  for (const auto& [low, high] : all.ranges) {
    // The first range that ends at `low` or later.
    const auto range = std::ranges::lower_bound(from.ranges, low, {}, &Dfa::Range::high);
    const bool none = range == from.ranges.end() || range->low > high;
    if (!none && (range->low > low || range->high < high)) return {};
    const std::uint32_t reached = none ? kDead : range->to;
    if (to.value_or(reached) != reached) return {};
    to = reached;
  }
  return to;
}

CharClasses loops(const Dfa& dfa, std::uint32_t state) {
  CharClasses out = 0;
  for (std::uint32_t number = 0; number < kNoCharacter; ++number) {
    if (reached_alike(dfa.states[state], char_class(number)) == state)
      out |= CharClasses{1} << number;
  }
  return out;
}

}  // namespace bulkhead::constrain
