#include "worker/forward/tuning.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "config/base/fnv1a.hpp"
#include "config/base/log.hpp"
#include "config/base/unique_fd.hpp"
#include "gpu/kernels/matvec.hpp"
#include "gpu/kernels/units.hpp"

namespace bulkhead::forward {

namespace k = gpu::kernels;

namespace {

// A smaller gain is no reason to leave the default, because steps differ that much by themselves.
constexpr double kWorthIt = 0.005;  // required in both measurements
constexpr std::uintmax_t kLargestFileBytes = 1 << 20;
constexpr const char* kFirstWords = "bulkhead-tuning 1";

// Depends only on the shape: on no pointer, and on no order of loading.
std::string name_of(const k::Mapping& mapping, const k::MatvecShape& shape, bool in_chain) {
  return fmt::format("{}{}/t{}/r{}/g{}/e{}/a{}/p{}/s{}{}",
                     mapping.rows    ? "rows"
                     : mapping.units ? "units"
                                     : "lanes",
                     mapping.lanes, static_cast<int>(shape.type), shape.rows, shape.groups,
                     static_cast<int>(shape.epilogue), static_cast<int>(shape.gate),
                     shape.permuted_out ? 1 : 0, static_cast<int>(shape.scaling),
                     in_chain ? "/chain" : "");
}

void add_lanes(const k::Mapping& mapping, const k::MatvecShape& shape, std::uint32_t columns,
               std::vector<k::MatvecVariant>& variants) {
  const k::LanesTiling usual = k::lanes_tiling(mapping, shape, columns);
  for (const std::uint32_t rows : {1U, 2U, 4U}) {
    for (const std::uint32_t subgroups : {4U, 8U}) {
      // The same variants as in bench-matvec: as many rows as registers hold, and whole rows that rotate together.
      const std::uint32_t matrix_rows = shape.epilogue == k::Epilogue::kGated ? 2 * rows : rows;
      if (subgroups < usual.split || matrix_rows * usual.columns > 64 ||
          matrix_rows * k::row_of(shape.type).planes.quants > 32)
        continue;
      if (shape.epilogue == k::Epilogue::kQkv && subgroups / usual.split * rows % 2 != 0) continue;
      if (rows == usual.rows && subgroups == usual.subgroups) continue;
      variants.push_back(
          k::lanes_product(mapping, shape, {usual.columns, rows, subgroups, usual.split}));
    }
  }
}

void add_rows(const k::Mapping& mapping, const k::MatvecShape& shape, std::uint32_t columns,
              std::vector<k::MatvecVariant>& variants) {
  const k::RowsTiling usual = k::rows_tiling(mapping, shape, columns);
  const std::uint32_t most = shape.epilogue == k::Epilogue::kGated ? 2 : 4;
  for (std::uint32_t blocks = 1; blocks <= most; blocks *= 2) {
    if (blocks == usual.row_blocks || shape.rows < blocks * mapping.lanes) continue;
    variants.push_back(k::rows_product(mapping, shape, {usual.columns, blocks}));
  }
}

void add_units(const k::MatvecShape& shape, std::uint32_t columns, bool in_chain,
               std::vector<k::MatvecVariant>& variants) {
  const k::UnitTiling usual = k::unit_tiling(shape, columns, in_chain);
  const std::uint32_t segments = k::unit_segments(shape).count;
  const auto add = [&](const k::UnitTiling& tiling) {
    if (!k::unit_sums_fit(shape, tiling) || tiling.column_tiles * tiling.step_groups > 16) return;
    k::MatvecVariant variant = k::unit_product(shape, tiling);
    const bool known = std::any_of(variants.begin(), variants.end(), [&](const auto& other) {
      return other.spec.constants == variant.spec.constants;
    });
    if (!known) variants.push_back(std::move(variant));
  };
  if (usual.serial) {
    add({columns, 2, 4, 8, 2, true, 1, 0});
    add({columns, 2, 4, 4, 2, true, 1, 1});
    add({columns, 2, 2, 4, 2, true, 2, 1});
    add({columns, 2, 8, 4, 1, true, 1, 0});
    return;
  }
  k::UnitTiling tiling = usual;
  // `ahead`: which weights a workgroup loads early, such as while it waits for other kernels of a chain (kAhead).
  for (const std::uint32_t ahead : {0U, 1U, 2U}) {
    if (!in_chain && ahead != usual.ahead) continue;
    for (const std::uint32_t blocks : {1U, 2U}) {
      for (const std::uint32_t step : {2U, 4U}) {
        tiling.row_blocks = blocks;
        tiling.step_groups = step;
        tiling.ahead = ahead;
        add(tiling);
      }
    }
  }
  // Variants with more rows in a workgroup.
  if (segments >= 4 && usual.subgroups == segments && segments * 2 <= 16) {
    tiling = usual;
    tiling.subgroups = segments * 2;
    for (const std::uint32_t blocks : {1U, 2U}) {
      tiling.row_blocks = blocks;
      add(tiling);
    }
  }
}

}  // namespace

std::vector<k::MatvecVariant> product_variants(const k::Mapping& mapping,
                                               const k::MatvecShape& shape, std::uint32_t columns,
                                               bool in_chain) {
  std::vector<k::MatvecVariant> variants{k::matvec(mapping, shape, columns, in_chain)};
  if (mapping.units) {
    add_units(shape, columns, in_chain, variants);
  } else if (mapping.rows) {
    add_rows(mapping, shape, columns, variants);
  } else {
    add_lanes(mapping, shape, columns, variants);
  }
  return variants;
}

std::string tuning_path(const std::string& cache_folder, const gpu::DeviceInfo& info) {
  if (cache_folder.empty()) return {};
  return fmt::format("{}/tuning-{:04x}-{:04x}-{}.txt", cache_folder, info.vendor_id, info.device_id,
                     info.driver_uuid);
}

Tuning::Tuning(k::Mapping mapping, std::string path) : mapping_(mapping), path_(std::move(path)) {
  if (!path_.empty()) read();
}

// Reads the file. Its first line has the kernels' hash and the body's checksum; each further line has a product:
// columns, name, how many variants there were, and which one was chosen.
void Tuning::read() {
  const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) return;
  const auto ignored = [&](const char* why) {
    known_.clear();
    spdlog::warn("tuning file {}: {}; it is ignored and kernels are measured again", path_, why);
  };
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<std::uintmax_t>(status.st_size) > kLargestFileBytes)
    return ignored("no plain file of a plausible size");
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t got = 0;
  while (got < text.size()) {
    const ssize_t more = ::read(fd.get(), text.data() + got, text.size() - got);
    if (more < 0 && errno == EINTR) continue;
    if (more <= 0) return ignored("unreadable");
    got += static_cast<std::size_t>(more);
  }
  std::istringstream lines(text);
  std::string first, hash, checksum;
  std::getline(lines, first);
  std::getline(lines, hash);
  std::getline(lines, checksum);
  if (first != kFirstWords) return ignored("not of this version");
  // The file is about other kernels. It is not wrong, but it says nothing about these kernels.
  if (hash != fmt::format("{:016x}", k::code_hash())) return;
  const auto at = lines.tellg();
  const std::string_view body =
      at < 0 ? std::string_view() : std::string_view(text).substr(static_cast<std::size_t>(at));
  if (checksum != fmt::format("{:016x}", fnv1a(body))) return ignored("its checksum is wrong");
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    Key key;
    Known known;
    if (!(words >> key.first >> key.second >> known.variants >> known.chosen) ||
        known.chosen >= known.variants)
      return ignored("it has a broken line");
    known_[key] = known;
  }
}

Status Tuning::save() const {
  if (path_.empty()) return {};
  std::map<Key, Known> all = known_;
  for (const auto& [key, entry] : products_) {
    if (!entry.measured) continue;
    const auto count =
        product_variants(mapping_, entry.shape, entry.columns, entry.in_chain).size();
    all[key] = {static_cast<std::uint32_t>(count), entry.chosen};
  }
  std::string body;
  for (const auto& [key, known] : all)
    body += fmt::format("{} {} {} {}\n", key.first, key.second, known.variants, known.chosen);
  const std::string text =
      fmt::format("{}\n{:016x}\n{:016x}\n{}", kFirstWords, k::code_hash(), fnv1a(body), body);
  // Several workers may share the folder: the last rename wins, and each file is complete.
  std::string temporary = path_ + ".XXXXXX";
  const UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid())
    return errno_error(ErrorCode::kUnavailable, "tuning: creating " + temporary, errno);
  const ssize_t written = ::write(fd.get(), text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size()) ||
      std::rename(temporary.c_str(), path_.c_str()) != 0) {
    const Error error = errno_error(ErrorCode::kUnavailable, "tuning: writing " + path_, errno);
    ::unlink(temporary.c_str());
    return error;
  }
  return {};
}

k::MatvecVariant Tuning::matvec(const k::MatvecShape& shape, std::uint32_t columns, bool in_chain) {
  const Key key{columns, name_of(mapping_, shape, in_chain)};
  auto found = products_.find(key);
  if (found == products_.end()) {
    Entry entry{shape, columns, in_chain, 0, false};
    const std::size_t variants = product_variants(mapping_, shape, columns, in_chain).size();
    if (const auto known = known_.find(key);
        known != known_.end() && known->second.variants == variants) {
      entry.chosen = known->second.chosen;
      entry.measured = true;
    }
    found = products_.emplace(key, entry).first;
  }
  const std::uint32_t chosen = found->second.chosen;
  if (chosen == 0) return k::matvec(mapping_, shape, columns, in_chain);
  return product_variants(mapping_, shape, columns, in_chain)[chosen];
}

std::vector<gpu::KernelSpec> Tuning::unmeasured() const {
  std::vector<gpu::KernelSpec> specs;
  for (const auto& [key, entry] : products_) {
    if (entry.measured) continue;
    for (k::MatvecVariant& variant :
         product_variants(mapping_, entry.shape, entry.columns, entry.in_chain))
      specs.push_back(entry.in_chain ? k::chained(std::move(variant.spec))
                                     : std::move(variant.spec));
  }
  return specs;
}

std::size_t Tuning::measured() const {
  return static_cast<std::size_t>(
      std::count_if(products_.begin(), products_.end(),
                    [](const auto& product) { return product.second.measured; }));
}

void Tuning::choose_all(std::size_t index) {
  for (auto& [key, entry] : products_) {
    entry.chosen = static_cast<std::uint32_t>(
        index % product_variants(mapping_, entry.shape, entry.columns, entry.in_chain).size());
    entry.measured = true;
  }
}

Status Tuning::run(const Measure& measure, std::uint32_t budget_ms) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(budget_ms);
  std::size_t tried = 0, taken = 0;
  for (auto& [key, entry] : products_) {
    if (entry.measured) continue;
    if (Clock::now() >= end) break;
    const auto step_with = [&measure, &entry = entry](std::uint32_t variant) -> Result<double> {
      entry.chosen = variant;
      auto took = measure(entry.columns);
      if (!took.ok()) entry.chosen = 0;
      return took;
    };
    const std::size_t variants =
        product_variants(mapping_, entry.shape, entry.columns, entry.in_chain).size();
    BULKHEAD_TRY(double usual_us, step_with(0));
    std::uint32_t best = 0;
    double best_us = usual_us;
    for (std::uint32_t variant = 1; variant < variants; ++variant) {
      BULKHEAD_TRY(const double took, step_with(variant));
      if (took >= best_us) continue;
      best_us = took;
      best = variant;
    }
    // The best of many variants may have been lucky, and a device's clock may have risen meanwhile, so both are
    // measured once more.
    if (best != 0 && best_us < usual_us * (1 - kWorthIt)) {
      BULKHEAD_TRY(usual_us, step_with(0));
      BULKHEAD_TRY(best_us, step_with(best));
    }
    if (best_us >= usual_us * (1 - kWorthIt)) best = 0;
    entry.chosen = best;
    entry.measured = true;
    ++tried;
    if (best != 0) {
      spdlog::debug("tuning: {} for {} columns: variant {}, steps of {:.1f} us instead of {:.1f}",
                    key.second, entry.columns, best, best_us, usual_us);
      ++taken;
    }
  }
  if (tried > 0) {
    spdlog::debug("tuning: {} products measured, {} of them changed, {} of {} known", tried, taken,
                  measured(), products_.size());
  }
  return tried > 0 ? save() : Status();
}

}  // namespace bulkhead::forward
