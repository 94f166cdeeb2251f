#include "orchestrator/journal/record.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <spdlog/fmt/fmt.h>

namespace bulkhead::orchestrator {

namespace {

// The most bytes of which the search after a damaged place computes checksums. A prompt can be made to look like the
// beginnings of many large records.
constexpr std::size_t kMostSearchedBytes = std::size_t{1} << 30;
constexpr std::size_t kChecksummedFrom = 8;  // of a record: everything after the checksum

// Castagnoli's polynomial, reflected. A byte at a time gives 400 MB/s; tokens are a few KB/s.
constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit)
      value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78U : 0U);
    table[i] = value;
  }
  return table;
}
constexpr std::array<std::uint32_t, 256> kTable = make_table();

template <typename Number>
void put(std::string& out, Number value) {
  for (std::size_t i = 0; i < sizeof value; ++i)
    out += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
}

template <typename Number>
Number get(std::string_view bytes, std::size_t at) {
  Number value = 0;
  for (std::size_t i = 0; i < sizeof value; ++i)
    value |= static_cast<Number>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes, std::uint32_t salt) {
  std::uint32_t value = 0xFFFFFFFFU ^ salt;
  for (char c : bytes)
    value = (value >> 8) ^ kTable[(value ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~value;
}

std::string journal_header(std::uint32_t salt) {
  std::string out(kJournalMagic);
  put(out, kJournalVersion);
  put(out, salt);
  return out;
}

void append_record(std::string& out, const JournalRecord& record, std::uint32_t salt) {
  const std::size_t begin = out.size();
  out.reserve(begin + kRecordHeaderBytes + record.payload.size());
  put(out, static_cast<std::uint32_t>(record.payload.size()));
  put(out, std::uint32_t{0});
  put(out, static_cast<std::uint32_t>(record.type));
  put(out, record.unix_seconds);
  put(out, record.key);
  out += record.payload;
  std::string checksum;
  put(checksum, crc32c(std::string_view(out).substr(begin + kChecksummedFrom), salt));
  out.replace(begin + 4, 4, checksum);
}

namespace {

// The record at the beginning of `bytes`, or what is wrong with it.
struct Found {
  JournalRecord record;
  std::size_t bytes = 0;   // of the whole record
  std::size_t summed = 0;  // bytes whose checksum was computed
  std::string damage;      // empty: none
};
Found record_at(std::string_view bytes, std::uint32_t salt) {
  Found found;
  if (bytes.size() < kRecordHeaderBytes) {
    found.damage = "a record's head is cut off";
    return found;
  }
  const std::size_t length = get<std::uint32_t>(bytes, 0);
  const std::uint32_t type = get<std::uint32_t>(bytes, 8);
  if (length > kMaxRecordBytes || length > bytes.size() - kRecordHeaderBytes) {
    found.damage = fmt::format("a record of {} bytes is cut off", length);
    return found;
  }
  // This test comes before the checksum, because it shows at once that most places are not records.
  if (type < static_cast<std::uint32_t>(RecordType::kBegun) ||
      type > static_cast<std::uint32_t>(RecordType::kDropped)) {
    found.damage = fmt::format("a record has the unknown type {}", type);
    return found;
  }
  const std::string_view whole = bytes.substr(0, kRecordHeaderBytes + length);
  found.summed = whole.size();
  if (crc32c(whole.substr(kChecksummedFrom), salt) != get<std::uint32_t>(whole, 4)) {
    found.damage = "a record's checksum does not fit";
    return found;
  }
  found.record = {static_cast<RecordType>(type), get<std::uint32_t>(whole, 12),
                  get<std::uint64_t>(whole, 16), whole.substr(kRecordHeaderBytes)};
  found.bytes = whole.size();
  return found;
}

}  // namespace

Result<JournalEnd> read_journal(std::string_view bytes,
                                const std::function<void(const JournalRecord&)>& visit) {
  const std::string_view magic = bytes.substr(0, std::min(bytes.size(), kJournalMagic.size()));
  if (!kJournalMagic.starts_with(magic)) {
    return Error(ErrorCode::kUnsupported,
                 "this is no journal of Bulkhead's; take another file, or move this one away");
  }
  JournalEnd end;
  if (bytes.size() < kJournalHeaderBytes) {
    if (!bytes.empty()) end.damage = "its header is cut off";
    end.torn_bytes = bytes.size();
    return end;
  }
  const std::uint32_t version = get<std::uint32_t>(bytes, kJournalMagic.size());
  if (version != kJournalVersion && version != kJournalWithoutSalt) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("the journal has version {}, and this program writes version {}; move "
                             "it away, or go back to the program that wrote it",
                             version, kJournalVersion));
  }
  const std::uint32_t salt = version == kJournalWithoutSalt
                                 ? 0
                                 : get<std::uint32_t>(bytes, kJournalMagic.size() + sizeof version);
  std::size_t at = kJournalHeaderBytes, damaged_from = 0, searched = 0;
  end.good_bytes = at;
  while (at < bytes.size()) {
    const Found found = record_at(bytes.substr(at), salt);
    if (found.damage.empty()) {
      if (damaged_from != 0) end.skipped_bytes += at - std::exchange(damaged_from, 0);
      visit(found.record);
      at += found.bytes;
      if (end.damage.empty()) end.good_bytes = at;
      continue;
    }
    if (end.damage.empty()) end.damage = found.damage;
    if (damaged_from == 0) damaged_from = at;
    searched += found.summed;
    if (searched > kMostSearchedBytes) break;
    ++at;
  }
  if (damaged_from != 0) end.torn_bytes = bytes.size() - damaged_from;
  return end;
}

}  // namespace bulkhead::orchestrator
