#include "controller/template_registry.hpp"

#include "base/log.hpp"
#include "domain/template_name.hpp"
#include "wire/codec.hpp"

#include <algorithm>
#include <fstream>

namespace controller {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t manifest_bytes_max = std::size_t{64} * 1024;

struct ManifestFile {
  std::string name;
  std::string build;
  std::string created_at;
  std::uint32_t vcpus = 1;
  std::uint32_t memory_mib = 512;
  std::uint32_t disk_mib = 4096;
  std::string default_user = "user";
  std::string default_workdir;

  static bool required(std::string_view name) {
    return name == "name" || name == "build" || name == "created_at";
  }
};
BOOST_DESCRIBE_STRUCT(
    ManifestFile,
    (),
    (name, build, created_at, vcpus, memory_mib, disk_mib, default_user, default_workdir))

/// Builds are folder names: nothing that could leave the pool.
bool is_build_name(std::string_view text) {
  auto const fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  };
  return !text.empty() && text.size() <= 64 && std::ranges::all_of(text, fits);
}

base::Result<std::string> read_small_file(std::string const& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return base::fail(base::Code::not_found, "the manifest cannot be read", path);
  std::string text(manifest_bytes_max + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > manifest_bytes_max)
    return base::fail(base::Code::too_large, "the manifest is too long", path);
  return text;
}

}  // namespace

base::Result<Manifest> parse_manifest(std::string const& build, std::string_view text) {
  auto value = wire::parse_json(text, manifest_bytes_max);
  if (!value) return base::passing(value, "read the manifest");
  auto file = wire::decode<ManifestFile>(*value, wire::UnknownKeys::ignore);
  if (!file) return base::passing(file, "read the manifest");
  auto const invalid = [](std::string why) {
    return base::fail(base::Code::invalid_argument, std::move(why));
  };
  if (file->build != build) return invalid("the manifest is of another build than its folder");
  auto const name = domain::parse_template_name(file->name);
  if (!name || name->alias != file->name) return invalid("the manifest's name is no template name");
  if (file->vcpus == 0 || file->vcpus > 64) return invalid("the manifest's vcpus are out of range");
  if (file->memory_mib < 64 || file->memory_mib > (1U << 20))
    return invalid("the manifest's memory_mib is out of range");
  if (file->disk_mib < 16 || file->disk_mib > (1U << 24))
    return invalid("the manifest's disk_mib is out of range");
  Manifest manifest;
  manifest.name = std::move(file->name);
  manifest.build = build;
  manifest.created_at = std::move(file->created_at);
  manifest.vcpus = file->vcpus;
  manifest.memory_mib = file->memory_mib;
  manifest.disk_mib = file->disk_mib;
  manifest.default_user = std::move(file->default_user);
  manifest.default_workdir = std::move(file->default_workdir);
  manifest.whole = std::move(*value);
  return manifest;
}

store::asio::awaitable<bool> TemplateRegistry::consider(std::vector<std::string> builds) {
  bool all = true;
  std::vector<Manifest> fresh;
  for (auto const& build : builds) {
    if (known_.contains(build) || !is_build_name(build)) continue;
    auto const text = read_small_file(pool_ + "/templates/" + build + "/manifest.json");
    base::Result<Manifest> manifest;
    if (text) manifest = parse_manifest(build, *text);
    if (text && manifest) {
      fresh.push_back(std::move(*manifest));
      continue;
    }
    all = false;
    if (complained_.insert(build).second) {
      auto const& error = text ? manifest.error() : text.error();
      base::log::warn("manifest_unusable", {{"build", build}, {"why", error.message()}});
    }
  }
  std::ranges::sort(fresh, {}, &Manifest::created_at);
  for (auto& manifest : fresh) {
    auto const build = manifest.build;
    auto const added = co_await add(std::move(manifest));
    if (added) {
      known_.insert(build);
      complained_.erase(build);
    } else {
      all = false;
      if (complained_.insert(build).second) {
        base::log::warn("template_not_registered",
                        {{"build", build}, {"why", added.error().message()}});
      }
    }
  }
  co_return all;
}

async::Task<void> TemplateRegistry::add(Manifest manifest) {
  auto const until = base::system_clock().in(5s);
  store::NewBuild build;
  auto existing = co_await store_.templates.find("", manifest.name, until);
  if (!existing) co_return base::passing(existing);
  if (*existing) {
    auto builds = co_await store_.templates.builds((*existing)->id, until);
    if (!builds) co_return base::passing(builds);
    std::string newest;
    for (auto const& one : *builds) {
      if (one.build == manifest.build) co_return base::Result<void>();
      auto const* created =
          one.manifest.if_object() ? one.manifest.as_object().if_contains("created_at") : nullptr;
      if (created && created->is_string())
        newest = std::max(newest, std::string(created->as_string()));
    }
    if (newest > manifest.created_at) build.tag = "build-" + manifest.build.substr(0, 8);
  }
  build.name = manifest.name;
  build.build = manifest.build;
  build.vcpus = manifest.vcpus;
  build.memory_mib = manifest.memory_mib;
  build.disk_mib = manifest.disk_mib;
  build.default_user = std::move(manifest.default_user);
  build.default_workdir = std::move(manifest.default_workdir);
  build.manifest = std::move(manifest.whole);
  auto row = co_await store_.templates.register_build(build, until);
  if (!row) co_return base::passing(row, "register the template build");
  base::log::info("template_registered",
                  {{"template", build.name},
                   {"build", build.build},
                   {"tag", build.tag},
                   {"version", row->version}});
  co_return base::Result<void>();
}

}  // namespace controller
