// The command line of most programs. Only program_options.cpp includes CLI11, because its headers take six seconds to
// compile in each file.
//
//   ProgramOptions options("What the program is for");
//   options.add("--device", plan.device, "auto, cpu, an index or part of a device's name").show_default();
//   options.add("--streams", plan.streams, "one run for each number").comma_separated().within(1, 256);
//   options.flag("--baseline", plan.baseline, "without any of it");
//   if (const auto code = options.parse(argc, argv)) return *code;
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/base/error.hpp"

namespace bulkhead {

class ProgramOptions {
 public:
  // Further properties of an option. Valid as long as the ProgramOptions.
  class Option {
   public:
    Option& show_default();  // --help shows the present value as the default
    Option& required();
    Option& comma_separated();  // "1,4,16" are three values
    Option& repeated();         // the option may be given several times, with one value each; all are kept
    Option& not_empty();        // refuses "", which an unset variable of a shell would give
    Option& values(int count);  // exactly this many values
    Option& within(int least, int most);
    Option& within(double least, double most);
    Option& one_of(std::vector<std::string> words);
    Option& excludes(const Option& other);

   private:
    friend class ProgramOptions;
    explicit Option(void* option) : option_(option) {}
    void* option_;  // CLI11's
  };

  // The name is for programs that may be started under another name.
  explicit ProgramOptions(const std::string& description, const std::string& name = "");
  ~ProgramOptions();
  ProgramOptions(const ProgramOptions&) = delete;
  ProgramOptions& operator=(const ProgramOptions&) = delete;

  // `value` holds the default; after parse() it holds what the user gave. It must live until then.
  Option add(const std::string& names, std::string& value, const std::string& help);
  Option add(const std::string& names, int& value, const std::string& help);
  Option add(const std::string& names, std::uint32_t& value, const std::string& help);
  Option add(const std::string& names, std::uint64_t& value, const std::string& help);
  Option add(const std::string& names, double& value, const std::string& help);
  Option add(const std::string& names, std::vector<std::string>& value, const std::string& help);
  Option add(const std::string& names, std::vector<int>& value, const std::string& help);
  Option add(const std::string& names, std::vector<std::uint32_t>& value, const std::string& help);
  // "!--no-thing" makes it false.
  Option flag(const std::string& names, bool& value, const std::string& help);

  void version(const std::string& text);  // what --version prints
  void footer(const std::string& text);   // the end of --help
  std::string help() const;

  // Returns the exit code if the program must not go on: 0 after --help or --version, 2 after a mistake, which is
  // printed on stderr.
  std::optional<int> parse(int argc, char** argv);

  // For programs that report mistakes themselves. Returns false if --help or --version was asked for and has been
  // printed.
  Result<bool> read(int argc, char** argv);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bulkhead
