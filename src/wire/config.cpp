#include "wire/config.hpp"

#include <fstream>
#include <sstream>

namespace wire {

std::string Config::check() const {
  auto const lower = [](char c) { return c >= 'a' && c <= 'z'; };
  auto const plain = [&](char c) { return lower(c) || (c >= '0' && c <= '9'); };
  if (instance.empty() || instance.size() > 8 || !lower(instance[0]) ||
      !std::ranges::all_of(instance, plain)) {
    return "instance: one to eight of a-z and 0-9, a letter first";
  }
  if (!data_dir.starts_with('/') || !run_dir.starts_with('/'))
    return "data_dir, run_dir: absolute paths";
  // ".s.PGSQL.5432.lock" is the longest name below run_dir/postgres; socket paths end at 107 bytes.
  if (run_dir.size() > 70) return "run_dir: at most 70 characters, or socket paths get too long";
  if (slot_uid_base < 100'000) return "slot_uid_base: at least 100000, away from real users";
  if (translation_cache_mib < 8 || translation_cache_mib > 2048)
    return "translation_cache_mib: 8 to 2048";
  if (slots_max == 0 || slots_max > 4096) return "slots_max: 1 to 4096";
  // What hostd accepts (src/hostd/validate.cpp), so that a mistake is told at once and not by every
  // create.
  if (disk_mib_per_s_max > 900'000 || net_mib_per_s_max > 900'000)
    return "disk_mib_per_s_max, net_mib_per_s_max: 0 (no limit) to 900000";
  if (disk_ops_per_s_max != 0 && (disk_ops_per_s_max < 10 || disk_ops_per_s_max > 1'000'000'000))
    return "disk_ops_per_s_max: 0 (no limit), or 10 to 1000000000";
  if (warm_target > 64) return "warm_target: 0 (none) to 64";
  if (requests_per_second_max == 0) return "requests_per_second_max: at least 1";
  if (accelerator != "auto" && accelerator != "kvm" && accelerator != "tcg")
    return "accelerator: auto, kvm or tcg";
  if (uplink != "none" && uplink != "host" &&
      (!uplink.starts_with("/run/") || uplink.find("/../") != std::string::npos))
    return "uplink: none, host, or the file of a network namespace below /run";
  return {};
}

base::Result<Config> load_config(std::string const& path) {
  std::ifstream file(path);
  if (!file) return base::fail(base::Code::not_found, "the configuration cannot be read", path);
  std::ostringstream text;
  text << file.rdbuf();
  auto config = decode_text<Config>(text.str());
  if (!config) return base::passing(config, path);
  return config;
}

}  // namespace wire
