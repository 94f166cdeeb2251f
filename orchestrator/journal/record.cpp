#include "orchestrator/journal/record.hpp"

#include <algorithm>
#include <array>

#include <spdlog/fmt/fmt.h>

namespace bulkhead::orchestrator {

namespace {

constexpr std::size_t kChecksummedFrom = 8;  // of a record: everything after the checksum

// Castagnoli's polynomial, reflected; a byte at a time is 400 MB/s, and tokens are a few KB/s.
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

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t value = 0xFFFFFFFFU;
  for (char c : bytes)
    value = (value >> 8) ^ kTable[(value ^ static_cast<unsigned char>(c)) & 0xFF];
  return ~value;
}

std::string journal_header() {
  std::string out(kJournalMagic);
  put(out, kJournalVersion);
  put(out, std::uint32_t{0});
  return out;
}

void append_record(std::string& out, const JournalRecord& record) {
  const std::size_t begin = out.size();
  out.reserve(begin + kRecordHeaderBytes + record.payload.size());
  put(out, static_cast<std::uint32_t>(record.payload.size()));
  put(out, std::uint32_t{0});
  put(out, static_cast<std::uint32_t>(record.type));
  put(out, record.unix_seconds);
  put(out, record.key);
  out += record.payload;
  std::string checksum;
  put(checksum, crc32c(std::string_view(out).substr(begin + kChecksummedFrom)));
  out.replace(begin + 4, 4, checksum);
}

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
    return end;
  }
  const std::uint32_t version = get<std::uint32_t>(bytes, kJournalMagic.size());
  if (version != kJournalVersion) {
    return Error(ErrorCode::kUnsupported,
                 fmt::format("the journal has version {}, and this program writes version {}; move "
                             "it away, or go back to the program that wrote it",
                             version, kJournalVersion));
  }
  std::size_t at = kJournalHeaderBytes;
  while (at < bytes.size()) {
    end.good_bytes = at;
    const std::size_t rest = bytes.size() - at;
    if (rest < kRecordHeaderBytes) {
      end.damage = "a record's head is cut off";
      return end;
    }
    const std::size_t length = get<std::uint32_t>(bytes, at);
    if (length > kMaxRecordBytes || length > rest - kRecordHeaderBytes) {
      end.damage = fmt::format("a record of {} bytes is cut off", length);
      return end;
    }
    const std::string_view whole = bytes.substr(at, kRecordHeaderBytes + length);
    if (crc32c(whole.substr(kChecksummedFrom)) != get<std::uint32_t>(whole, 4)) {
      end.damage = "a record's checksum does not fit";
      return end;
    }
    const std::uint32_t type = get<std::uint32_t>(whole, 8);
    if (type < static_cast<std::uint32_t>(RecordType::kBegun) ||
        type > static_cast<std::uint32_t>(RecordType::kDropped)) {
      end.damage = fmt::format("a record has the unknown type {}", type);
      return end;
    }
    visit({static_cast<RecordType>(type), get<std::uint32_t>(whole, 12),
           get<std::uint64_t>(whole, 16), whole.substr(kRecordHeaderBytes)});
    at += whole.size();
  }
  end.good_bytes = at;
  return end;
}

}  // namespace bulkhead::orchestrator
