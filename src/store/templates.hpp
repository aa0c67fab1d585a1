#pragma once

#include "store/database.hpp"

/// Templates and their builds. A build is content-addressed and never changes; a tag points at one.
namespace store {

struct BuildRow {
  std::string id;                  // UUID
  std::string template_public_id;  // 't…'
  std::string template_name;
  std::string build;  // content address, the name of its folder in the pool
  std::uint32_t version = 1;
  std::string state = "ready";  // building, ready, failed
  std::uint32_t vcpus = 1;
  std::uint32_t memory_mib = 512;
  std::uint32_t disk_mib = 4096;
  std::string default_user = "user";
  std::string default_workdir;
  json::value manifest;
  base::WallTime created_at;
};

struct TemplateRow {
  std::string id, public_id, name;
  std::string project_id;  // "" for those of the installation, which everybody may use
  bool is_public = false;
  std::uint64_t spawn_count = 0;
  std::uint32_t build_count = 0;
  std::optional<BuildRow> latest;  // of the tag "default"
  base::WallTime created_at, updated_at;
};

struct NewBuild {
  std::string project_id;  // "": a template of the installation
  std::string name;
  std::string build;
  std::uint32_t vcpus = 1;
  std::uint32_t memory_mib = 512;
  std::uint32_t disk_mib = 4096;
  std::string default_user = "user";
  std::string default_workdir;
  json::value manifest;
  std::string tag = "default";
};

struct TagRow {
  std::string tag;
  std::string build_id;
  base::WallTime updated_at;
};

class Templates {
 public:
  explicit Templates(Database& database) : database_(database) {}

  /// Registers a ready build (the next version of that template, which is made when needed) and
  /// points the tag at it. The same build again changes nothing but the tag.
  async::Task<BuildRow> register_build(NewBuild build, base::Deadline deadline);
  /// What a sandbox of "name", "name:tag" or a template's public id starts from. Nothing when it
  /// does not exist, is not ready, or belongs to another project.
  async::Task<std::optional<BuildRow>> resolve(std::string project_id,
                                               std::string name_or_id,
                                               std::string tag,
                                               base::Deadline deadline);
  async::Task<std::vector<TemplateRow>> list(std::string project_id, base::Deadline deadline);
  async::Task<std::optional<TemplateRow>> find(std::string project_id,
                                               std::string name_or_id,
                                               base::Deadline deadline);
  async::Task<std::vector<BuildRow>> builds(std::string template_id, base::Deadline deadline);
  async::Task<std::vector<TagRow>> tags(std::string template_id, base::Deadline deadline);

 private:
  async::Task<std::vector<TemplateRow>> select(std::string project_id,
                                               std::string name_or_id,
                                               base::Deadline deadline);
  Database& database_;
};

}  // namespace store
