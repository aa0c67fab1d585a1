#include "vmm/firecracker_fake.hpp"

#include "vmm/firecracker_api.hpp"
#include "wire/codec.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>

namespace vmm::firecracker {
namespace {

using Answer = Fake::Answer;

Answer refuse(std::string_view why) {
  return {400, wire::to_text(json::object{{"fault_message", why}})};
}

Answer bad_json(std::string_view why) {
  return refuse(
      fmt::format("An error occurred when deserializing the json body of a request: {}", why));
}

/// When a call is allowed: before the start, after it, always.
enum class When { pre, post, both };

/// A request's form. `fields` is "name[!]:type …", ! for those that must be there. Types: u8, u32,
/// uint, bool, text, mac, level, any; "a|b" for words; @name for another object, [@name] for a
/// list.
struct Form {
  std::string_view method;
  std::string_view segment;  // the first of its path
  std::string_view tail;     // what follows; "{id}" an id, "*" anything
  When when;
  std::string_view fields;
};

constexpr Form forms[] = {
    {"GET", "", "", When::both, ""},
    {"GET", "version", "", When::both, ""},
    {"GET", "machine-config", "", When::both, ""},
    {"GET", "balloon", "", When::both, ""},
    {"GET", "balloon", "statistics", When::post, ""},
    {"GET", "balloon", "hinting/status", When::post, ""},
    {"GET", "vm", "config", When::both, ""},
    {"GET", "mmds", "", When::both, ""},
    {"GET", "hotplug", "memory", When::post, ""},
    {"PUT",
     "logger",
     "",
     When::pre,
     "log_path:text level:level show_level:bool show_log_origin:bool module:text"},
    {"PUT", "metrics", "", When::pre, "metrics_path!:text emit_id:bool properties:any"},
    {"PUT", "serial", "", When::pre, "serial_out_path:text rate_limiter:@bucket"},
    {"PUT",
     "machine-config",
     "",
     When::pre,
     "vcpu_count!:u8 mem_size_mib!:uint smt:bool cpu_template:C3|T2|T2S|None|T2CL|T2A "
     "track_dirty_pages:bool huge_pages:None|Transparent|2M"},
    {"PATCH",
     "machine-config",
     "",
     When::pre,
     "vcpu_count:u8 mem_size_mib:uint smt:bool cpu_template:C3|T2|T2S|None|T2CL|T2A "
     "track_dirty_pages:bool huge_pages:None|Transparent|2M"},
    {"PUT",
     "cpu-config",
     "",
     When::pre,
     "kvm_capabilities:any cpuid_modifiers:any msr_modifiers:any"},
    {"PUT",
     "boot-source",
     "",
     When::pre,
     "kernel_image_path!:text boot_args:text initrd_path:text"},
    {"PUT",
     "drives",
     "{id}",
     When::both,
     "drive_id!:text is_root_device!:bool path_on_host:text is_read_only:bool "
     "cache_type:Unsafe|Writeback io_engine:Sync|Async rate_limiter:@limiter partuuid:text "
     "socket:text"},
    {"PATCH",
     "drives",
     "{id}",
     When::post,
     "drive_id!:text path_on_host:text rate_limiter:@limiter"},
    {"DELETE", "drives", "{id}", When::post, ""},
    {"DELETE", "network-interfaces", "{id}", When::post, ""},
    {"DELETE", "pmem", "{id}", When::post, ""},
    {"PUT",
     "pmem",
     "{id}",
     When::both,
     "id!:text path_on_host!:text root_device:bool read_only:bool rate_limiter:@limiter"},
    {"PUT",
     "network-interfaces",
     "{id}",
     When::both,
     "iface_id!:text host_dev_name!:text guest_mac:mac mtu:uint rx_rate_limiter:@limiter "
     "tx_rate_limiter:@limiter"},
    {"PATCH",
     "network-interfaces",
     "{id}",
     When::post,
     "iface_id!:text rx_rate_limiter:@limiter tx_rate_limiter:@limiter"},
    {"PUT", "vsock", "", When::pre, "guest_cid!:u32 uds_path!:text vsock_id:text"},
    {"PUT",
     "balloon",
     "",
     When::pre,
     "amount_mib!:u32 deflate_on_oom!:bool stats_polling_interval_s:uint free_page_hinting:bool "
     "free_page_reporting:bool"},
    {"PATCH", "balloon", "", When::post, "amount_mib!:u32"},
    {"PATCH", "balloon", "statistics", When::post, "stats_polling_interval_s!:uint"},
    {"PATCH", "balloon", "hinting/start", When::post, "acknowledge_on_stop:bool"},
    {"PATCH", "balloon", "hinting/stop", When::post, ""},
    {"PUT", "entropy", "", When::pre, "rate_limiter:@limiter"},
    {"PUT",
     "hotplug",
     "memory",
     When::pre,
     "total_size_mib!:uint slot_size_mib:uint block_size_mib:uint"},
    {"PATCH", "hotplug", "memory", When::post, "requested_size_mib!:uint"},
    {"PUT", "mmds", "", When::both, "*"},
    {"PATCH", "mmds", "", When::both, "*"},
    {"PUT",
     "mmds",
     "config",
     When::pre,
     "network_interfaces!:any version:V1|V2 ipv4_address:text imds_compat:bool"},
    {"PUT", "actions", "", When::both, "action_type!:FlushMetrics|InstanceStart|SendCtrlAltDel"},
    {"PATCH", "vm", "*", When::post, "state!:Paused|Resumed"},
    {"PUT",
     "snapshot",
     "create",
     When::post,
     "snapshot_path!:text mem_file_path!:text snapshot_type:Diff|Full"},
    {"PUT",
     "snapshot",
     "load",
     When::both,
     "snapshot_path!:text mem_backend:@backend mem_file_path:text enable_diff_snapshots:bool "
     "track_dirty_pages:bool resume_vm:bool network_overrides:[@override] "
     "vsock_override:@vsock clock_realtime:bool huge_pages:None|Transparent|2M"},
};

constexpr std::pair<std::string_view, std::string_view> objects[] = {
    {"@bucket", "size!:uint refill_time!:uint one_time_burst:uint"},
    {"@limiter", "bandwidth:@bucket ops:@bucket"},
    {"@backend", "backend_type!:File|Uffd backend_path!:text"},
    {"@override", "iface_id!:text host_dev_name!:text"},
    {"@vsock", "uds_path!:text"},
};

std::string fault_in_object(json::value const& value, std::string_view fields);

bool is_mac(std::string_view text) {
  if (text.size() != 17) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    bool const hex = std::string_view("0123456789abcdefABCDEF").contains(text[i]);
    if (i % 3 == 2 ? text[i] != ':' : !hex) return false;
  }
  return true;
}

bool is_level(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  constexpr std::string_view levels[] = {
      "off", "trace", "debug", "info", "warn", "warning", "error"};
  return std::ranges::find(levels, lower) != std::end(levels);
}

std::string fault_in_number(json::value const& value, std::string_view type) {
  std::uint64_t const most = type == "u8"    ? 0xFF
                             : type == "u32" ? 0xFFFF'FFFF
                                             : std::numeric_limits<std::uint64_t>::max();
  if (!value.is_int64() && !value.is_uint64())
    return fmt::format("invalid type, expected {}", type);
  if (value.is_int64() && value.get_int64() < 0)
    return fmt::format("invalid value: expected {}", type);
  if (value.to_number<std::uint64_t>() > most)
    return fmt::format("invalid value: expected {}", type);
  return {};
}

std::string fault_in_value(json::value const& value, std::string_view type) {
  if (type == "any") return {};
  if (type == "u8" || type == "u32" || type == "uint") return fault_in_number(value, type);
  if (type == "bool") return value.is_bool() ? "" : "invalid type, expected a boolean";
  if (type.starts_with('[')) {
    if (!value.is_array()) return "invalid type, expected a sequence";
    for (auto const& one : value.get_array()) {
      if (auto fault = fault_in_value(one, type.substr(1, type.size() - 2)); !fault.empty())
        return fault;
    }
    return {};
  }
  for (auto const& [name, fields] : objects)
    if (type == name) return fault_in_object(value, fields);
  if (!value.is_string()) return "invalid type, expected a string";
  std::string_view const text = value.get_string();
  if (type == "text") return {};
  if (type == "mac") return is_mac(text) ? "" : "The provided MAC address is invalid.";
  if (type == "level") return is_level(text) ? "" : "Invalid LevelFilter";
  std::istringstream words{std::string(type)};
  for (std::string word; std::getline(words, word, '|');)
    if (word == text) return {};
  return fmt::format("unknown variant `{}`", text);
}

std::string fault_in_object(json::value const& value, std::string_view fields) {
  if (!value.is_object()) return "invalid type, expected a struct";
  auto const& object = value.get_object();
  if (fields == "*") return {};
  std::set<std::string> known;
  std::istringstream words{std::string(fields)};
  std::string missing;
  for (std::string word; words >> word;) {
    auto const colon = word.find(':');
    bool const must = word[colon - 1] == '!';
    auto const name = word.substr(0, must ? colon - 1 : colon);
    known.insert(name);
    auto const* field = object.if_contains(name);
    if (!field && must && missing.empty()) missing = fmt::format("missing field `{}`", name);
    if (!field || (!must && field->is_null())) continue;
    auto fault = fault_in_value(*field, std::string_view(word).substr(colon + 1));
    if (!fault.empty()) return fault;
  }
  for (auto const& field : object)
    if (!known.contains(std::string(field.key())))
      return fmt::format("unknown field `{}`", std::string_view(field.key()));
  return missing;
}

/// A key of the outermost object that stands there twice, which the parser here would not tell.
std::string twice_in(std::string_view body, json::object const& object) {
  for (auto const& field : object) {
    auto const quoted = fmt::format("\"{}\":", std::string_view(field.key()));
    auto const first = body.find(quoted);
    if (first != std::string_view::npos && body.find(quoted, first + 1) != std::string_view::npos)
      return fmt::format("duplicate field `{}`", std::string_view(field.key()));
  }
  return {};
}

bool is_id(std::string_view text) {
  return std::ranges::all_of(text,
                             [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

std::string text_at(json::object const& object, std::string_view key) {
  auto const* value = object.if_contains(key);
  return value && value->is_string() ? std::string(value->get_string()) : std::string();
}

std::uint64_t number_at(json::object const& object, std::string_view key, std::uint64_t otherwise) {
  auto const* value = object.if_contains(key);
  return value && value->is_number() ? value->to_number<std::uint64_t>() : otherwise;
}

constexpr char after_start[] =
    "The requested operation is not supported after starting the microVM.";
constexpr char before_start[] =
    "The requested operation is not supported before starting the microVM.";

}  // namespace

struct Fake::Call {
  std::string method;
  std::string segment;
  std::string tail;
  std::string id;  // of drives, network-interfaces, pmem
  Form const* form = nullptr;
  json::object body;

  bool is(std::string_view wanted, std::string_view first, std::string_view rest = {}) const {
    return method == wanted && segment == first && (rest.empty() || tail == rest);
  }
};

std::optional<Answer> Fake::check_time(Call const& call) const {
  bool const started = state_ != State::not_started;
  if (started && call.form->when == When::pre) return refuse(after_start);
  if (!started && call.form->when == When::post) return refuse(before_start);
  // Devices are added and taken away while it runs on PCI alone.
  bool const device =
      call.segment == "drives" || call.segment == "network-interfaces" || call.segment == "pmem";
  if (started && device && call.method != "PATCH") return refuse("PCI is not enabled");
  if (!call.is("PUT", "actions")) return std::nullopt;
  bool const start = text_at(call.body, "action_type") == "InstanceStart";
  if (start && started) return refuse(after_start);
  if (!start && !started) return refuse(before_start);
  if (start && !seen_.contains("boot-source"))
    return refuse("Start microvm error: Cannot start microvm without kernel configuration.");
  return std::nullopt;
}

std::optional<Answer> Fake::check_drive(Call const& call) const {
  if (call.method == "PUT") {
    bool const path = call.body.contains("path_on_host");
    if (path == call.body.contains("socket"))
      return refuse(
          "Drive config error: Unable to create the virtio block device: Invalid block config.");
    bool const root = call.body.at("is_root_device").as_bool();
    for (auto const& [other, is_root] : drives_)
      if (root && is_root && other != call.id)
        return refuse("Drive config error: A root block device already exists!");
  }
  if (call.method == "PATCH") {
    if (!drives_.contains(call.id))
      return refuse("Drive config error: Unable to patch the block device: Device not found");
    if (call.body.size() == 1)
      return refuse("Drive config error: Running method expected different backend.");
  }
  return std::nullopt;
}

std::optional<Answer> Fake::check_link(Call const& call) const {
  if (call.method == "PATCH") {
    if (!links_.contains(call.id))
      return refuse("Network config error: Unable to update the net device: Device not found");
    return std::nullopt;
  }
  auto const tap = text_at(call.body, "host_dev_name");
  if (tap.size() > 15)
    return refuse("Network config error: Open tap device failed: Invalid interface name");
  auto const mtu = number_at(call.body, "mtu", 1500);
  if (mtu < 68 || mtu > 65535) return refuse("Network config error: MTU is out of range");
  for (auto const& [name, other] : links_) {
    if (name == call.id) continue;
    auto const mac = text_at(call.body, "guest_mac");
    if (!mac.empty() && mac == text_at(other, "guest_mac"))
      return refuse("Network config error: The MAC address is already in use");
  }
  return std::nullopt;
}

std::optional<Answer> Fake::check_snapshot(Call const& call) const {
  if (call.tail == "create") {
    if (state_ != State::paused)
      return refuse(
          "Create snapshot error: Operation not allowed: save/restore unavailable while running");
    return std::nullopt;
  }
  bool const one = call.body.contains("mem_backend");
  if (one == call.body.contains("mem_file_path"))
    return bad_json("either `mem_backend` or `mem_file_path` is required, exclusively");
  if (state_ != State::not_started) return refuse(after_start);
  for (auto const& segment : seen_) {
    if (segment != "logger" && segment != "metrics" && segment != "serial")
      return refuse(
          "Load snapshot error: Loading a microVM snapshot not allowed after configuring "
          "boot-specific resources.");
  }
  return std::nullopt;
}

std::optional<Answer> Fake::check_sense(Call const& call) const {
  if (call.segment == "machine-config" && call.method != "GET") {
    auto const vcpus = number_at(call.body, "vcpu_count", 1);
    auto const* smt = call.body.if_contains("smt");
    bool const odd = smt && smt->is_bool() && smt->get_bool() && vcpus > 1 && vcpus % 2 != 0;
    if (vcpus < 1 || vcpus > 32 || odd)
      return refuse(
          "Machine config error: The number of vCPUs must be greater than 0, less than 32");
    auto const mib = number_at(call.body, "mem_size_mib", 128);
    bool const halves = text_at(call.body, "huge_pages") == "2M" && mib % 2 != 0;
    if (mib == 0 || halves)
      return refuse("Machine config error: The memory size (MiB) is either 0, …");
  }
  if (call.is("PUT", "boot-source") && text_at(call.body, "boot_args").size() > 2048)
    return refuse("Boot source error: The kernel command line is invalid");
  if (call.is("PUT", "metrics") && seen_.contains("metrics"))
    return refuse("Metrics error: Reinitialization of metrics not allowed.");
  if (call.segment == "drives") return check_drive(call);
  if (call.segment == "network-interfaces" && call.method != "DELETE") return check_link(call);
  if (call.segment == "snapshot") return check_snapshot(call);
  return std::nullopt;
}

std::optional<Answer> Fake::check(Call const& call) const {
  bool const named = call.form->tail == "{id}";
  if (named && call.method != "DELETE") {
    char const* const field = call.segment == "drives" ? "drive_id"
                              : call.segment == "pmem" ? "id"
                                                       : "iface_id";
    if (text_at(call.body, field) != call.id)
      return refuse("The id from the path does not match the id from the body!");
  }
  if (auto early = check_time(call)) return early;
  return check_sense(call);
}

Fake::Answer Fake::read(Call const& call) const {
  json::object out;
  if (call.segment.empty()) {
    constexpr char const* names[] = {"Not started", "Running", "Paused", "Gone"};
    out = {{"id", id},
           {"state", names[static_cast<int>(state_)]},
           {"vmm_version", version},
           {"app_name", "Firecracker"}};
  } else if (call.segment == "version") {
    out = {{"firecracker_version", version}};
  }
  return {200, wire::to_text(out)};
}

Fake::Answer Fake::carry_out(Call const& call) {
  if (call.method == "GET") return read(call);
  if (state_ == State::not_started) seen_.insert(call.segment);
  if (call.is("PUT", "drives")) drives_[call.id] = call.body.at("is_root_device").as_bool();
  if (call.is("PUT", "network-interfaces")) links_[call.id] = call.body;
  if (call.is("PATCH", "vm"))
    state_ = text_at(call.body, "state") == "Paused" ? State::paused : State::running;
  if (call.is("PUT", "actions") && text_at(call.body, "action_type") == "InstanceStart")
    state_ = State::running;
  if (call.is("PUT", "snapshot", "load")) {
    for (auto const& drive : snapshot_drives)
      drives_[drive] = false;
    for (auto const& link : snapshot_links)
      links_[link] = {};
    auto const* resume = call.body.if_contains("resume_vm");
    state_ = resume && resume->is_bool() && resume->get_bool() ? State::running : State::paused;
  }
  return {};
}

Fake::Answer Fake::answer(std::string_view method, std::string_view path, std::string_view body) {
  refused.clear();
  auto const no = [&](Answer answer) {
    refused = fault_in(answer.body);
    return answer;
  };
  Call call;
  call.method = method;
  std::istringstream parts{std::string(path)};
  for (std::string part; std::getline(parts, part, '/');) {
    if (part.empty()) continue;
    if (call.segment.empty()) {
      call.segment = part;
    } else {
      call.tail += (call.tail.empty() ? "" : "/") + part;
    }
  }
  auto const unknown =
      refuse(fmt::format("Invalid request method and/or path: {} {}.", method, path));
  if (method == "GET" && !body.empty()) return no(refuse("GET request cannot have a body."));
  if (method == "DELETE" && !body.empty()) return no(refuse("Empty Delete request."));
  bool const writes = method == "PUT" || method == "PATCH";
  if (writes && body.empty()) return no(refuse(fmt::format("Empty {} request.", method)));
  for (auto const& form : forms) {
    bool const tail_fits = form.tail == "{id}" || form.tail == "*" || form.tail == call.tail;
    if (form.method == method && form.segment == call.segment && tail_fits) call.form = &form;
  }
  if (!call.form) return no(unknown);
  if (call.form->tail == "{id}") {
    call.id = call.tail;
    if (call.id.empty()) return no(refuse("The ID cannot be empty."));
    if (!is_id(call.id))
      return no(
          refuse("API Resource IDs can only contain alphanumeric characters and underscores."));
  }
  if (writes) {
    auto parsed = wire::parse_json(body);
    if (!parsed) return no(bad_json(parsed.error().message()));
    auto fault = fault_in_object(*parsed, call.form->fields);
    if (fault.empty()) fault = twice_in(body, parsed->get_object());
    if (!fault.empty()) return no(bad_json(fault));
    call.body = parsed->get_object();
    if (call.is("PATCH", "machine-config") && call.body.empty())
      return no(refuse("Empty PATCH request."));
  }
  if (auto early = check(call)) return no(*early);
  auto failure = std::exchange(host_says_, std::nullopt);
  bool const loads = call.is("PUT", "snapshot", "load");
  if (loads && !failure) {
    auto const* overrides = call.body.if_contains("network_overrides");
    for (auto const& one :
         overrides && overrides->is_array() ? overrides->get_array() : json::array())
      if (!snapshot_links.contains(text_at(one.get_object(), "iface_id")))
        failure = refuse("Load snapshot error: Unknown Network Device");
  }
  if (failure) {
    // The one call whose failure ends the process.
    if (loads) state_ = State::gone;
    return no(*failure);
  }
  accepted.push_back(fmt::format("{} {}", method, path));
  bodies[accepted.back()] = call.body;
  return carry_out(call);
}

std::string Fake::take(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  auto const lost = [&](std::string_view why) {
    pending_.clear();
    auto const body = fmt::format(
        "{{ \"error\": \"{}\nAll previous unanswered requests will be dropped.\" }}", why);
    out += fmt::format(
        "HTTP/1.1 400 \r\nServer: Firecracker API\r\nConnection: keep-alive\r\nContent-Type: "
        "application/json\r\nContent-Length: {}\r\n\r\n{}",
        body.size(),
        body);
    return out;
  };
  for (;;) {
    auto const end = pending_.find("\r\n\r\n");
    if (end == std::string::npos || state_ == State::gone) return out;
    std::istringstream head(pending_.substr(0, end));
    std::string method, path, protocol, line;
    head >> method >> path >> protocol;
    if (method != "GET" && method != "PUT" && method != "PATCH" && method != "DELETE")
      return lost("Invalid HTTP Method: Unsupported HTTP method.");
    std::size_t length = 0;
    std::getline(head, line);
    while (std::getline(head, line)) {
      if (line.starts_with("Content-Length: "))
        length = std::strtoul(line.c_str() + 16, nullptr, 10);
      if (line.starts_with("Transfer-Encoding:")) return lost("Unsupported header.");
    }
    if (length > request_body_bytes_max) return lost("Request payload is larger than the limit");
    if (pending_.size() < end + 4 + length) return out;
    auto const given = answer(method, path, std::string_view(pending_).substr(end + 4, length));
    pending_.erase(0, end + 4 + length);
    out += fmt::format("HTTP/1.1 {} \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n",
                       given.status);
    if (!given.body.empty())
      out += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n",
                         given.body.size());
    out += "\r\n" + given.body;
  }
}

}  // namespace vmm::firecracker
