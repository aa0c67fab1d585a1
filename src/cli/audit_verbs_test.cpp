#include "audit/chain.hpp"
#include "cli/policy_verbs.hpp"
#include "os/fd.hpp"

#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace cli {
namespace {

class AuditVerbs : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(log_directory_);
    log_ = audit::Log::open(log_directory_).value();
  }

  void TearDown() override { std::filesystem::remove_all(directory_); }

  void append(std::string const& sandbox) {
    ASSERT_TRUE(log_->append("{\"sandbox\":\"" + sandbox + "\"}"));
  }

  AuditOptions options() const {
    AuditOptions out;
    out.directory = log_directory_;
    out.file = directory_ + "/export";
    out.state_file = directory_ + "/state";
    return out;
  }

  std::vector<std::string> exported() const {
    std::ifstream in(directory_ + "/export");
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);)
      lines.push_back(line);
    return lines;
  }

  std::string directory_ = "/tmp/space-audit-verbs-" + std::to_string(::getpid());
  std::string log_directory_ = directory_ + "/log";
  std::unique_ptr<audit::Log> log_;
};

TEST_F(AuditVerbs, RetentionIsShownAndSetAndNonsenseChangesNothing) {
  auto asked = options();
  EXPECT_EQ(audit_retain(asked, false), 0);
  EXPECT_FALSE(std::filesystem::exists(log_directory_ + "/retention")) << "to look changes nothing";
  asked.keep_days = 90;
  EXPECT_EQ(audit_retain(asked, true), 0);
  asked.keep_days = 1'000'000;
  EXPECT_NE(audit_retain(asked, false), 0);
  std::ifstream in(log_directory_ + "/retention");
  std::string text;
  std::getline(in, text);
  EXPECT_EQ(text, "1024 90");
  asked.directory = directory_ + "/none";
  asked.keep_days = 1;
  EXPECT_NE(audit_retain(asked, false), 0);
}

TEST_F(AuditVerbs, ACheckpointIsKeptAndComparedWith) {
  append("a");
  auto asked = options();
  asked.checkpoint_file = directory_ + "/checkpoint";
  EXPECT_EQ(audit_verify(asked, false), 0);
  append("b");
  EXPECT_EQ(audit_verify(asked, false), 0);
  std::string const path = log_directory_ + "/audit-00000001.jsonl";
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  std::ofstream(path) << text.str().substr(0, text.str().find('\n') + 1);
  EXPECT_EQ(audit_verify(options(), false), 0) << "the chain alone does not tell";
  EXPECT_NE(audit_verify(asked, false), 0);
  EXPECT_NE(audit_verify(asked, true), 0) << "and it goes on telling";
  std::ofstream(asked.checkpoint_file) << "2\n";
  EXPECT_NE(audit_verify(asked, false), 0) << "no checkpoint";
}

TEST_F(AuditVerbs, AnExportGoesOnWhereItWas) {
  append("a");
  append("b");
  EXPECT_EQ(audit_verify(options(), false), 0);
  EXPECT_EQ(audit_export(options()), 0);
  EXPECT_EQ(exported().size(), 2U);
  EXPECT_EQ(audit_export(options()), 0);
  EXPECT_EQ(exported().size(), 2U) << "nothing twice";
  append("a");
  append("b");
  auto only_a = options();
  only_a.sandbox = "a";
  EXPECT_EQ(audit_export(only_a), 0);
  EXPECT_EQ(exported().size(), 3U);
  std::ofstream(directory_ + "/state") << "nonsense";
  EXPECT_NE(audit_export(options()), 0);
  EXPECT_EQ(exported().size(), 3U);
}

TEST_F(AuditVerbs, SyslogGetsEachLineAndWithoutOneNothingCountsAsExported) {
  append("a");
  append("b");
  auto asked = options();
  asked.file = "";
  asked.to_syslog = true;
  asked.syslog_socket = directory_ + "/log.sock";
  EXPECT_NE(audit_export(asked), 0) << "nobody is there";
  EXPECT_FALSE(std::filesystem::exists(asked.state_file));
  os::Fd const taker(::socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  asked.syslog_socket.copy(name.sun_path, sizeof name.sun_path - 1);
  // SAFETY: bind takes any address type through sockaddr*.
  ASSERT_EQ(::bind(taker.get(), reinterpret_cast<sockaddr const*>(&name), sizeof name), 0);
  auto const next = [&] {
    std::array<char, 4096> buffer;
    auto const got = ::recv(taker.get(), buffer.data(), buffer.size(), 0);
    return std::string(buffer.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  };
  EXPECT_EQ(audit_export(asked), 0);
  EXPECT_TRUE(next().starts_with(R"(<86>space-audit: {"seq":1,)"));
  EXPECT_TRUE(next().ends_with("\"}"));
  EXPECT_EQ(next(), "");
  EXPECT_EQ(audit_export(asked), 0);
  EXPECT_EQ(next(), "") << "nothing twice";
}

TEST_F(AuditVerbs, WhatRetentionTookBeforeItWasExportedIsTold) {
  log_.reset();
  log_ = audit::Log::open(log_directory_, {1'000, 3}).value();
  append("a");
  EXPECT_EQ(audit_export(options()), 0);
  for (int i = 0; i < 100; ++i)
    append("b");
  EXPECT_NE(audit_export(options()), 0) << "lines are missing in between";
  auto const kept = exported().size();
  EXPECT_GT(kept, 1U) << "what is there is exported all the same";
  EXPECT_EQ(audit_export(options()), 0) << "and it is told once";
  EXPECT_EQ(exported().size(), kept);
}

TEST_F(AuditVerbs, NothingBehindAChangedLineIsExported) {
  append("a");
  append("b");
  append("c");
  auto const file = log_directory_ + "/audit-00000001.jsonl";
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  auto changed = text.str();
  changed.replace(changed.find("\"b\""), 3, "\"x\"");
  std::ofstream(file, std::ios::trunc) << changed;
  EXPECT_NE(audit_verify(options(), true), 0);
  EXPECT_NE(audit_export(options()), 0);
  EXPECT_EQ(exported().size(), 1U);
}

}  // namespace
}  // namespace cli
