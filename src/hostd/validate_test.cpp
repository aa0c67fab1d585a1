#include "hostd/validate.hpp"

#include <functional>
#include <limits>

#include <gtest/gtest.h>

namespace hostd {
namespace {

constexpr Bounds bounds{.slots = 8, .kvm = false};

Request request(Action action) {
  Request made;
  made.action = action;
  if (action != Action::hello) made.slot = 3;
  if (action == Action::dial) made.port = 49'983;
  if (action == Action::start_vmm) {
    made.epoch = 1;
    std::string_view("i0123456789abcdefghij").copy(made.sandbox.data(), made.sandbox.size());
  }
  return made;
}

constexpr Action all_actions[] = {Action::hello,
                                  Action::make_slot,
                                  Action::remove_slot,
                                  Action::start_vmm,
                                  Action::attach_vmm,
                                  Action::end_vmm,
                                  Action::inspect_slot,
                                  Action::dial,
                                  Action::start_gateway,
                                  Action::attach_gateway,
                                  Action::end_gateway};

TEST(Validation, EveryActionHasAValidForm) {
  for (auto const action : all_actions) {
    EXPECT_EQ(fault_in(request(action), bounds), "") << static_cast<int>(action);
  }
}

struct Bad {
  char const* what;
  Action action;
  std::function<void(Request&)> spoil;
  std::string_view answer_begins;
};

class BadRequest : public testing::TestWithParam<Bad> {};

TEST_P(BadRequest, IsRefusedWithTheFieldsName) {
  auto spoiled = request(GetParam().action);
  GetParam().spoil(spoiled);
  auto const fault = fault_in(spoiled, bounds);
  EXPECT_TRUE(fault.starts_with(GetParam().answer_begins)) << GetParam().what << ": " << fault;
  EXPECT_FALSE(fault.empty()) << GetParam().what;
}

void put_sandbox(Request& r, std::string_view text) {
  r.sandbox = {};
  text.copy(r.sandbox.data(), r.sandbox.size());
}

constexpr auto most = std::numeric_limits<std::uint64_t>::max();

INSTANTIATE_TEST_SUITE_P(
    Table,
    BadRequest,
    testing::Values(
        Bad{"old version", Action::hello, [](Request& r) { r.version = 0; }, "version"},
        Bad{"new version",
            Action::hello,
            [](Request& r) { r.version = protocol_version + 1; },
            "version"},
        Bad{"action 0", Action::hello, [](Request& r) { r.action = Action{0}; }, "action"},
        Bad{"action 99", Action::hello, [](Request& r) { r.action = Action{99}; }, "action"},
        Bad{"action 2^32-1",
            Action::hello,
            [](Request& r) { r.action = Action{0xFFFF'FFFF}; },
            "action"},
        Bad{"hello with a slot", Action::hello, [](Request& r) { r.slot = 1; }, "slot"},
        Bad{"slot behind the last", Action::make_slot, [](Request& r) { r.slot = 8; }, "slot"},
        Bad{"slot 2^32-1", Action::remove_slot, [](Request& r) { r.slot = 0xFFFF'FFFF; }, "slot"},
        Bad{"dial without a port", Action::dial, [](Request& r) { r.port = 0; }, "port"},
        Bad{"dial 65536", Action::dial, [](Request& r) { r.port = 65'536; }, "port"},
        Bad{"a port for another action",
            Action::make_slot,
            [](Request& r) { r.port = 22; },
            "port"},
        Bad{"epoch 0", Action::start_vmm, [](Request& r) { r.epoch = 0; }, "epoch"},
        Bad{"an epoch for another action",
            Action::end_vmm,
            [](Request& r) { r.epoch = 1; },
            "epoch"},
        Bad{"a sandbox for another action",
            Action::attach_vmm,
            [](Request& r) { put_sandbox(r, "i0123456789abcdefghij"); },
            "sandbox"},
        Bad{"a passage for another action",
            Action::make_slot,
            [](Request& r) { r.passage.named = 1; },
            "passage"},
        Bad{"check with named 2",
            Action::check_rules,
            [](Request& r) { r.passage.named = 2; },
            "named"},
        Bad{"drops of a slot that cannot be",
            Action::count_drops,
            [](Request& r) { r.slot = 1'000'000; },
            "slot"},
        Bad{"drops with a passage",
            Action::count_drops,
            [](Request& r) { r.passage.named = 1; },
            "passage"},
        Bad{"uplink of a slot", Action::check_uplink, [](Request& r) { r.slot = 1; }, "slot"},
        Bad{"named 2", Action::let_through, [](Request& r) { r.passage.named = 2; }, "named"},
        Bad{"more networks than fit",
            Action::let_through,
            [](Request& r) { r.passage.count = networks_max + 1; },
            "count"},
        Bad{"a network beyond the count",
            Action::let_through,
            [](Request& r) { r.passage.networks[0].bits = 8; },
            "networks"},
        Bad{"a network of 33 bits",
            Action::let_through,
            [](Request& r) {
              r.passage.count = 1;
              r.passage.networks[0] = {.address = 0, .bits = 33};
            },
            "networks"},
        Bad{"bits beyond the length",
            Action::let_through,
            [](Request& r) {
              r.passage.count = 1;
              r.passage.networks[0] = {.address = 0x0a000001, .bits = 8};
            },
            "networks"},
        Bad{"bits beyond no length at all",
            Action::let_through,
            [](Request& r) {
              r.passage.count = 1;
              r.passage.networks[0] = {.address = 1, .bits = 0};
            },
            "networks"},
        Bad{"no sandbox", Action::start_vmm, [](Request& r) { put_sandbox(r, ""); }, "sandbox"},
        Bad{"another kind of id",
            Action::start_vmm,
            [](Request& r) { put_sandbox(r, "t0123456789abcdefghij"); },
            "sandbox"},
        Bad{"a path",
            Action::start_vmm,
            [](Request& r) { put_sandbox(r, "i../../../etc/passwd0"); },
            "sandbox"},
        Bad{"a short id",
            Action::start_vmm,
            [](Request& r) { put_sandbox(r, "i0123456789abcdefghi"); },
            "sandbox"},
        Bad{"a long id",
            Action::start_vmm,
            [](Request& r) { put_sandbox(r, "i0123456789abcdefghijk"); },
            "sandbox"},
        Bad{"upper case",
            Action::start_vmm,
            [](Request& r) { put_sandbox(r, "i0123456789ABCDEFGHIJ"); },
            "sandbox"},
        Bad{"no padding at all",
            Action::start_vmm,
            [](Request& r) { r.sandbox.fill('i'); },
            "sandbox"},
        Bad{"something behind the padding",
            Action::start_vmm,
            [](Request& r) { r.sandbox[23] = 'x'; },
            "sandbox"},
        Bad{"accelerator 2",
            Action::start_vmm,
            [](Request& r) { r.machine.accelerator = Accelerator{2}; },
            "accelerator"},
        Bad{"KVM on a host without",
            Action::start_vmm,
            [](Request& r) { r.machine.accelerator = Accelerator::kvm; },
            "accelerator"},
        Bad{"unknown start",
            Action::start_vmm,
            [](Request& r) { r.machine.start = MachineStart{3}; },
            "start"},
        Bad{"no vCPU", Action::start_vmm, [](Request& r) { r.machine.vcpus = 0; }, "vcpus"},
        Bad{"33 vCPUs", Action::start_vmm, [](Request& r) { r.machine.vcpus = 33; }, "vcpus"},
        Bad{"2^32-1 vCPUs",
            Action::start_vmm,
            [](Request& r) { r.machine.vcpus = 0xFFFF'FFFF; },
            "vcpus"},
        Bad{"63 MiB",
            Action::start_vmm,
            [](Request& r) { r.machine.memory_mib = 63; },
            "memory_mib"},
        Bad{"4 PiB",
            Action::start_vmm,
            [](Request& r) { r.machine.memory_mib = 0xFFFF'FFFF; },
            "memory_mib"},
        Bad{"no translation cache",
            Action::start_vmm,
            [](Request& r) { r.machine.tb_size_mib = 0; },
            "tb_size_mib"},
        Bad{"a huge one",
            Action::start_vmm,
            [](Request& r) { r.machine.tb_size_mib = 2049; },
            "tb_size_mib"},
        Bad{"1 byte/s of disk",
            Action::start_vmm,
            [](Request& r) { r.machine.disk_bytes_per_s_max = 1; },
            "disk_bytes"},
        Bad{"2^64-1 bytes/s of disk",
            Action::start_vmm,
            [](Request& r) { r.machine.disk_bytes_per_s_max = most; },
            "disk_bytes"},
        Bad{"1 op/s",
            Action::start_vmm,
            [](Request& r) { r.machine.disk_ops_per_s_max = 1; },
            "disk_ops"},
        Bad{"2^64-1 ops/s",
            Action::start_vmm,
            [](Request& r) { r.machine.disk_ops_per_s_max = most; },
            "disk_ops"},
        Bad{"1 byte/s of net",
            Action::start_vmm,
            [](Request& r) { r.machine.net_bytes_per_s_max = 1; },
            "net_bytes"},
        Bad{"2^64-1 bytes/s of net",
            Action::start_vmm,
            [](Request& r) { r.machine.net_bytes_per_s_max = most; },
            "net_bytes"},
        Bad{"a 1 kHz processor",
            Action::start_vmm,
            [](Request& r) { r.machine.tsc_khz = 1; },
            "tsc_khz"},
        Bad{"a 2^64 kHz processor",
            Action::start_vmm,
            [](Request& r) { r.machine.tsc_khz = most; },
            "tsc_khz"}));

TEST(Validation, LimitsHoldAtTheirEdges) {
  auto edge = request(Action::start_vmm);
  edge.slot = 7;
  edge.epoch = most;
  edge.machine = {.accelerator = Accelerator::kvm,
                  .vcpus = 32,
                  .memory_mib = 262'144,
                  .tb_size_mib = 2048,
                  .disk_bytes_per_s_max = 65'536,
                  .disk_ops_per_s_max = 10,
                  .net_bytes_per_s_max = 8192,
                  .tsc_khz = 20'000'000};
  EXPECT_EQ(fault_in(edge, {.slots = 8, .kvm = true}), "");
}

TEST(Validation, FirecrackerIsRefusedWhereItCannotRun) {
  auto wanted = request(Action::start_vmm);
  wanted.machine.engine = Engine::firecracker;
  wanted.machine.accelerator = Accelerator::kvm;
  EXPECT_EQ(fault_in(wanted, {.slots = 8, .kvm = true, .firecracker = true}), "");
  EXPECT_TRUE(fault_in(wanted, {.slots = 8, .kvm = true}).starts_with("engine"));
  EXPECT_TRUE(fault_in(wanted, {.slots = 8, .firecracker = true}).starts_with("accelerator"));
  auto changed = wanted;
  changed.machine.start = MachineStart::restore;
  changed.machine.changed_pages = 1;
  EXPECT_TRUE(fault_in(changed, {.slots = 8, .kvm = true, .firecracker = true})
                  .starts_with("changed_pages"));
  wanted.machine.accelerator = Accelerator::tcg;
  EXPECT_TRUE(
      fault_in(wanted, {.slots = 8, .kvm = true, .firecracker = true}).starts_with("engine"));
  wanted.machine.engine = Engine{7};
  EXPECT_TRUE(
      fault_in(wanted, {.slots = 8, .kvm = true, .firecracker = true}).starts_with("engine"));
}

}  // namespace
}  // namespace hostd
