// Runs the bulkhead program as a user does.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace bulkhead {

inline const std::string kTool = std::string(BULKHEAD_BIN_DIR) + "/bulkhead";
inline const std::string kMaker = std::string(BULKHEAD_BIN_DIR) + "/make-model";

struct Outcome {
  int code = -1;
  std::string out, err;
};

class Cli : public testing::Test {
 protected:
  Cli()
      : folder_(std::filesystem::temp_directory_path() /
                ("bulkhead-cli-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~Cli() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  static std::string read(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    std::stringstream text;
    text << stream.rdbuf();
    return text.str();
  }
  // Runs a shell command line; `in` is its stdin.
  Outcome run(const std::string& command, const std::string& in = "") const {
    const std::string stdin_file = write("stdin", in);
    const int status = std::system(
        ("(" + command + ") < " + stdin_file + " > " + path("stdout") + " 2> " + path("stderr"))
            .c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status, read(path("stdout")),
            read(path("stderr"))};
  }
  std::string made_model(const std::string& preset, const std::string& type) const {
    const std::string file = path(preset + "-" + type + ".gguf");
    const Outcome made = run(kMaker + " --preset " + preset + " --type " + type + " -o " + file);
    EXPECT_EQ(made.code, 0) << made.err;
    return file;
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace bulkhead
