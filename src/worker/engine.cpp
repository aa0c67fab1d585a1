#include "worker/engine.hpp"

#include "os/text_file.hpp"

namespace worker {

void EngineChoice::open(std::string guest) {
  boot_id_ = os::read_text("/proc/sys/kernel/random/boot_id").value_or("");
  while (boot_id_.ends_with('\n'))
    boot_id_.pop_back();
  guest_ = std::move(guest);
  auto const text = os::read_text(file_);
  if (!text) return;
  auto const known = wire::decode_text<EngineRecord>(*text, wire::UnknownKeys::ignore);
  if (!known || boot_id_.empty() || known->boot_id != boot_id_ || known->guest != guest_) return;
  tried_ = true;
  works_ = known->firecracker;
  sentence_ = known->sentence;
}

bool EngineChoice::to_be_tried(bool found, std::optional<vmm::Accelerator> decided) const noexcept {
  return found && !tried_ && decided != vmm::Accelerator::tcg;
}

base::Result<void> EngineChoice::record(bool works, std::string sentence) {
  tried_ = true;
  works_ = works;
  sentence_ = std::move(sentence);
  return os::write_text_durably(
      file_, wire::encode_text(EngineRecord{boot_id_, guest_, works_, sentence_}) + "\n");
}

async::Task<std::unique_ptr<vmm::Vmm>> EngineDriver::boot(vmm::BootSpec spec) {
  bool const firecracker =
      engine_ == vmm::Engine::firecracker && spec.accelerator == vmm::Accelerator::kvm;
  if (firecracker) co_return co_await firecracker_.boot(std::move(spec));
  co_return co_await qemu_.boot(std::move(spec));
}

async::Task<std::unique_ptr<vmm::Vmm>> EngineDriver::adopt(std::uint32_t slot) {
  auto process = co_await launcher_.attach(slot);
  if (!process) co_return base::passing(process, "attach to the virtual machine");
  // Only a Firecracker has one.
  if (process->exchange) co_return co_await firecracker_.take_over(slot, std::move(*process));
  co_return qemu_.take_over(slot, std::move(*process));
}

std::string guest_under(std::string guest, vmm::Engine engine) {
  return engine == vmm::Engine::qemu ? guest
                                     : std::move(guest) + " " + std::string(vmm::name_of(engine));
}

}  // namespace worker
