#include "tools/cli/archive.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace bulkhead::cli {
namespace {

// A header's checksum is the sum of its bytes, with spaces in place of the checksum.
void expect_header(const std::string& archive, std::size_t at, const std::string& name,
                   std::size_t size) {
  const std::string header = archive.substr(at, 512);
  EXPECT_EQ(header.substr(0, name.size() + 1), name + '\0');
  EXPECT_EQ(std::stoul(header.substr(124, 11), nullptr, 8), size);
  EXPECT_EQ(header.substr(257, 8), std::string("ustar\0"
                                               "00",
                                               8));
  std::string summed = header;
  summed.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : summed)
    sum += static_cast<unsigned char>(c);
  EXPECT_EQ(std::stoul(header.substr(148, 6), nullptr, 8), sum);
}

TEST(Archive, HasAHeaderAndWholeBlocksForEachFile) {
  const std::vector<ArchivedFile> files = {
      {"a.txt", "hello"}, {"empty", ""}, {"b/c.txt", std::string(512, 'x')}};
  const std::string archive = tar_archive(files, 1700000000);
  ASSERT_EQ(archive.size(), 512U * (2 + 1 + 2 + 2));
  expect_header(archive, 0, "a.txt", 5);
  EXPECT_EQ(archive.substr(512, 6), std::string("hello\0", 6));
  expect_header(archive, 1024, "empty", 0);
  expect_header(archive, 1536, "b/c.txt", 512);
  EXPECT_EQ(archive.substr(2048, 512), std::string(512, 'x'));
  EXPECT_EQ(archive.substr(2560), std::string(1024, '\0'));
}

TEST(Archive, CutsANameThatIsTooLong) {
  const std::vector<ArchivedFile> files = {{std::string(300, 'n'), "x"}};
  const std::string archive = tar_archive(files, 0);
  EXPECT_EQ(archive.substr(0, 101), std::string(100, 'n') + '0');  // the '0' belongs to the mode
}

}  // namespace
}  // namespace bulkhead::cli
