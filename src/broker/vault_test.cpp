#include "broker/vault.hpp"

#include "broker/aead.hpp"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace broker {
namespace {

class VaultTest : public testing::Test {
 protected:
  VaultTest() {
    std::string name = testing::TempDir() + "/vault-XXXXXX";
    directory_ = ::mkdtemp(name.data());
    keys_ = open_file_keys(directory_).value();
    vault_ = std::make_unique<Vault>(*keys_, clock_);
  }

  ~VaultTest() override { std::filesystem::remove_all(directory_); }

  wire::Seal seal_request() {
    wire::Seal request;
    request.credential = "c1";
    request.value = "sk-secret-value";
    request.binding.hosts = {"api.llm.example"};
    request.binding.methods = {"POST"};
    request.binding.paths = {"/v1/**"};
    request.binding.header = "x-api-key";
    return request;
  }

  wire::Lease lease_of(wire::Sealed sealed) {
    return {"i1", 900'001, "llm-key", std::move(sealed), 60};
  }

  static wire::Use use() {
    return {"llm-key", "https", "api.llm.example", 443, "POST", "/v1/messages"};
  }

  std::string directory_;
  base::ManualClock clock_;
  std::unique_ptr<KeyProvider> keys_;
  std::unique_ptr<Vault> vault_;
};

TEST_F(VaultTest, GivesTheHeaderForTheBoundRequestOnly) {
  ASSERT_TRUE(vault_->lease(lease_of(vault_->seal(seal_request()).value())));
  auto const used = vault_->use(900'001, use());
  EXPECT_TRUE(used.ok) << used.message;
  EXPECT_EQ(used.header, "x-api-key");
  EXPECT_EQ(used.value, "sk-secret-value");
  auto const refused = [&](auto change) {
    auto request = use();
    change(request);
    auto const answer = vault_->use(900'001, request);
    EXPECT_EQ(answer.value, "");
    return !answer.ok;
  };
  EXPECT_TRUE(refused([](auto& r) { r.host = "evil.example"; }));
  EXPECT_TRUE(refused([](auto& r) { r.port = 8443; }));
  EXPECT_TRUE(refused([](auto& r) { r.method = "GET"; }));
  EXPECT_TRUE(refused([](auto& r) { r.method = "TRACE"; }));
  EXPECT_TRUE(refused([](auto& r) { r.path = "/admin"; }));
  EXPECT_TRUE(refused([](auto& r) { r.path = "/v1/../admin"; }));
  EXPECT_TRUE(refused([](auto& r) { r.scheme = "http"; }));
  EXPECT_TRUE(refused([](auto& r) { r.credential = "other"; }));
}

TEST_F(VaultTest, GivesNothingWhereNewCredentialsAreGivenOut) {
  auto request = seal_request();
  request.binding.methods.clear();
  request.binding.deny = {{"POST", "/v1/keys"}, {"", "/v1/organizations/**"}};
  auto const sealed = vault_->seal(request).value();
  ASSERT_TRUE(vault_->lease(lease_of(sealed)));
  auto const code_at = [&](std::string method, std::string path) {
    auto asked = use();
    asked.method = std::move(method);
    asked.path = std::move(path);
    auto const answer = vault_->use(900'001, asked);
    EXPECT_EQ(answer.ok, !answer.value.empty());
    return answer.ok ? "ok" : answer.code;
  };
  EXPECT_EQ(code_at("POST", "/v1/messages"), "ok");
  EXPECT_EQ(code_at("GET", "/v1/keys"), "ok");
  for (auto const* path : {"/v1/keys", "/v1/Keys/", "/v1/%6beys"})
    EXPECT_EQ(code_at("POST", path), "denied") << path;
  EXPECT_EQ(code_at("GET", "/v1/organizations/a/keys"), "denied");
  auto without = sealed;
  without.binding.deny.reset();
  EXPECT_FALSE(vault_->lease(lease_of(without))) << "taken out of the row afterwards";
}

TEST_F(VaultTest, AnotherGatewayHasNothing) {
  ASSERT_TRUE(vault_->lease(lease_of(vault_->seal(seal_request()).value())));
  EXPECT_EQ(vault_->use(900'002, use()).code, "not_found");
}

TEST_F(VaultTest, ACredentialIsUsedSoOftenByAllSandboxesTogether) {
  auto request = seal_request();
  request.binding.requests_per_s = 0;
  EXPECT_FALSE(vault_->seal(request));
  request.binding.requests_per_s = 2;
  auto const sealed = vault_->seal(request).value();
  auto other = lease_of(sealed);
  other.sandbox = "i2";
  other.gateway_uid = 900'002;
  ASSERT_TRUE(vault_->lease(lease_of(sealed)));
  ASSERT_TRUE(vault_->lease(other));
  auto elsewhere = use();
  elsewhere.host = "evil.example";
  EXPECT_EQ(vault_->use(900'001, elsewhere).code, "denied");
  EXPECT_TRUE(vault_->use(900'001, use()).ok) << "what was refused cost nothing";
  EXPECT_TRUE(vault_->use(900'002, use()).ok);
  auto const often = vault_->use(900'001, use());
  EXPECT_EQ(often.code, "exhausted");
  EXPECT_EQ(often.value, "");
  ASSERT_TRUE(vault_->lease(other));
  EXPECT_EQ(vault_->use(900'002, use()).code, "exhausted") << "a renewed lease refills nothing";
  clock_.advance(std::chrono::milliseconds(500));
  EXPECT_TRUE(vault_->use(900'002, use()).ok);
  EXPECT_EQ(vault_->use(900'001, use()).code, "exhausted");
  auto without = sealed;
  without.binding.requests_per_s.reset();
  EXPECT_FALSE(vault_->lease(lease_of(without))) << "taken out of the row afterwards";
}

TEST_F(VaultTest, ACredentialIsUsedBySoManyRequestsAtOnceAndSoOftenADay) {
  auto request = seal_request();
  request.binding.concurrent = 0;
  EXPECT_FALSE(vault_->seal(request));
  request.binding.concurrent = 1;
  request.binding.requests_per_day = 3;
  auto const sealed = vault_->seal(request).value();
  ASSERT_TRUE(vault_->lease(lease_of(sealed)));
  std::vector<std::string> held;
  auto const first = vault_->use(900'001, use(), &held);
  EXPECT_TRUE(first.ok && first.held) << first.message;
  EXPECT_EQ(held.size(), 1U);
  auto const second = vault_->use(900'001, use(), &held);
  EXPECT_EQ(second.code, "exhausted");
  EXPECT_EQ(second.later_s, 0U) << "nobody knows when";
  EXPECT_EQ(held.size(), 1U);
  for (int i = 0; i < 2; ++i) {
    vault_->release(held);
    EXPECT_TRUE(vault_->use(900'001, use()).ok);
  }
  vault_->release(held);
  auto const today = vault_->use(900'001, use());
  EXPECT_EQ(today.code, "exhausted");
  EXPECT_GT(today.later_s, 0U);
  EXPECT_EQ(today.value, "");
}

TEST_F(VaultTest, ManySandboxesShareABudgetAndNobodyDoesWithoutHis) {
  auto const budget_of = [](std::string level, std::string who, wire::SharedBudget budget) {
    wire::Lease lease;
    lease.sandbox = "i1";
    lease.gateway_uid = 900'001;
    lease.name = wire::budget_lease_name(level);
    lease.sealed.credential = "budget:" + level + ":" + who;
    lease.seconds = 60;
    lease.budget = budget;
    return lease;
  };
  auto project = budget_of("project", "p1", {std::nullopt, std::nullopt, 2});
  ASSERT_TRUE(vault_->lease(project));
  project.gateway_uid = 900'002;
  ASSERT_TRUE(vault_->lease(project));
  wire::Use question;
  question.scheme = "budget";
  question.credential = "project";
  EXPECT_TRUE(vault_->use(900'001, question).ok);
  question.credential = "organisation,project";
  EXPECT_EQ(vault_->use(900'001, question).code, "not_found") << "no lease is not no limit";
  ASSERT_TRUE(vault_->lease(budget_of("organisation", "o1", {1, std::nullopt, std::nullopt})));
  EXPECT_TRUE(vault_->use(900'001, question).ok);
  auto const refused = vault_->use(900'001, question);
  EXPECT_EQ(refused.code, "exhausted");
  EXPECT_EQ(refused.id, "organisation");
  question.credential = "project";
  auto const other = vault_->use(900'002, question);
  EXPECT_EQ(other.code, "exhausted") << "of both sandboxes together";
  EXPECT_EQ(other.id, "project");
  EXPECT_EQ(vault_->use(900'003, question).code, "not_found") << "another project's";
}

TEST_F(VaultTest, OneQuestionChargesABudgetOnce) {
  wire::Lease lease;
  lease.sandbox = "i1";
  lease.gateway_uid = 900'001;
  lease.name = wire::budget_lease_name("project");
  lease.sealed.credential = "budget:project:p1";
  lease.seconds = 60;
  lease.budget = wire::SharedBudget{std::nullopt, 1, std::nullopt};
  ASSERT_TRUE(vault_->lease(lease));
  wire::Use question;
  question.scheme = "budget";
  question.credential = "project,project";
  std::vector<std::string> held;
  EXPECT_EQ(vault_->use(900'001, question, &held).code, "denied");
  question.credential = "project";
  for (int i = 0; i < 2000; ++i)
    question.credential += fmt::format(",{}", i);
  EXPECT_EQ(vault_->use(900'001, question, &held).code, "denied");
  EXPECT_TRUE(held.empty());
  question.credential = "project";
  EXPECT_TRUE(vault_->use(900'001, question, &held).ok);
}

TEST_F(VaultTest, OneSandboxDoesNotTakeThePlacesOfAllOthers) {
  auto lease = lease_of(vault_->seal(seal_request()).value());
  for (int i = 0; i < 320; ++i) {
    lease.name = fmt::format("key-{}", i);
    ASSERT_TRUE(vault_->lease(lease));
  }
  EXPECT_TRUE(vault_->lease(lease)) << "one that is renewed takes no new place";
  lease.name = "one-more";
  auto const many = vault_->lease(lease);
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().code(), base::Code::exhausted);
  lease.gateway_uid = 900'002;
  EXPECT_TRUE(vault_->lease(lease));
}

TEST_F(VaultTest, ABudgetIsNoCredentialAndACredentialNoBudget) {
  ASSERT_TRUE(vault_->lease(lease_of(vault_->seal(seal_request()).value())));
  wire::Lease lease;
  lease.sandbox = "i1";
  lease.gateway_uid = 900'001;
  lease.name = "budget:project";
  lease.sealed.credential = "budget:project:p1";
  lease.seconds = 60;
  EXPECT_FALSE(vault_->lease(lease)) << "without what it is of";
  lease.budget.emplace();
  ASSERT_TRUE(vault_->lease(lease));
  auto asked = use();
  asked.credential = "budget:project";
  EXPECT_EQ(vault_->use(900'001, asked).code, "not_found");
  asked = use();
  asked.scheme = "budget";
  EXPECT_EQ(vault_->use(900'001, asked).code, "not_found");
  lease.name = "llm-key";
  EXPECT_FALSE(vault_->lease(lease));
}

TEST_F(VaultTest, LeasesEnd) {
  ASSERT_TRUE(vault_->lease(lease_of(vault_->seal(seal_request()).value())));
  clock_.advance(std::chrono::seconds(61));
  EXPECT_FALSE(vault_->use(900'001, use()).ok);
  EXPECT_EQ(vault_->leases(), 0U);
  ASSERT_TRUE(vault_->lease(lease_of(vault_->seal(seal_request()).value())));
  vault_->end_leases("i1");
  EXPECT_FALSE(vault_->use(900'001, use()).ok);
}

TEST_F(VaultTest, ANewGatewayInheritsNothingOfItsUserId) {
  ASSERT_TRUE(vault_->lease(lease_of(vault_->seal(seal_request()).value())));
  vault_->end_leases_of(900'002);
  EXPECT_TRUE(vault_->use(900'001, use()).ok);
  vault_->end_leases_of(900'001);
  EXPECT_EQ(vault_->use(900'001, use()).code, "not_found");
}

TEST_F(VaultTest, ABindingCannotBeWidenedAndRowsCannotBeSwapped) {
  auto const sealed = vault_->seal(seal_request()).value();
  EXPECT_EQ(sealed.ciphertext.find(to_hex("sk-secret")), std::string::npos);
  auto widened = sealed;
  widened.binding.hosts.emplace_back("evil.example");
  EXPECT_FALSE(vault_->lease(lease_of(widened)));
  auto renamed = sealed;
  renamed.credential = "c2";
  EXPECT_FALSE(vault_->lease(lease_of(renamed)));
  auto broken = sealed;
  broken.ciphertext.back() = broken.ciphertext.back() == '0' ? '1' : '0';
  EXPECT_FALSE(vault_->lease(lease_of(broken)));
  auto other = vault_->seal(seal_request()).value();
  other.ciphertext = sealed.ciphertext;
  EXPECT_FALSE(vault_->lease(lease_of(other)));
}

TEST_F(VaultTest, FormsOfTheHeader) {
  auto request = seal_request();
  request.binding.header = "authorization";
  request.binding.form = "bearer";
  ASSERT_TRUE(vault_->lease(lease_of(vault_->seal(request).value())));
  EXPECT_EQ(vault_->use(900'001, use()).value, "Bearer sk-secret-value");
  request.binding.form = "basic";
  request.binding.username = "x-access-token";
  request.value = "ghp";
  ASSERT_TRUE(vault_->lease(lease_of(vault_->seal(request).value())));
  EXPECT_EQ(vault_->use(900'001, use()).value, "Basic eC1hY2Nlc3MtdG9rZW46Z2hw");
}

TEST_F(VaultTest, WhatIsNoSecretSaysSo) {
  auto request = seal_request();
  ASSERT_TRUE(vault_->lease(lease_of(vault_->seal(request).value())));
  EXPECT_FALSE(vault_->use(900'001, use()).plain);
  request.binding.form = "plain";
  ASSERT_TRUE(vault_->lease(lease_of(vault_->seal(request).value())));
  EXPECT_TRUE(vault_->use(900'001, use()).plain);
  EXPECT_EQ(vault_->use(900'001, use()).value, "sk-secret-value");
}

TEST_F(VaultTest, RefusesMorePathsThanEachUseCanLookAt) {
  auto request = seal_request();
  request.binding.paths = {"/" + std::string(1023, 'x')};
  EXPECT_TRUE(vault_->seal(request));
  request.binding.paths = {"/" + std::string(1024, 'x')};
  EXPECT_FALSE(vault_->seal(request));
  request.binding.paths.assign(9, "/" + std::string(1000, 'x'));
  EXPECT_FALSE(vault_->seal(request));
}

TEST_F(VaultTest, RefusesWhatCannotBeAHeader) {
  auto request = seal_request();
  request.value = "a\r\nX-Evil: 1";
  EXPECT_FALSE(vault_->seal(request));
  request = seal_request();
  request.binding.hosts = {"*.example"};
  EXPECT_FALSE(vault_->seal(request));
  request = seal_request();
  request.binding.header = "x: y";
  EXPECT_FALSE(vault_->seal(request));
}

TEST_F(VaultTest, TheRootKeyIsNeverReplacedInSilence) {
  auto const sealed = vault_->seal(seal_request()).value();
  auto const again = open_file_keys(directory_).value();
  EXPECT_EQ(again->key_id(), keys_->key_id());
  ASSERT_EQ(::chmod((directory_ + "/root.key").c_str(), 0644), 0);
  EXPECT_FALSE(open_file_keys(directory_));
  std::filesystem::remove(directory_ + "/root.key");
  EXPECT_FALSE(open_file_keys(directory_));
  std::filesystem::remove(directory_ + "/root.id");
  auto const fresh = open_file_keys(directory_).value();
  Vault other(*fresh, clock_);
  auto const refused = other.lease(lease_of(sealed));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("another root key"), std::string::npos);
}

TEST_F(VaultTest, ARootKeyThatIsNoKeyIsNotUsed) {
  auto const path = directory_ + "/root.key";
  for (std::string const& key :
       {std::string(), std::string(31, 'k'), std::string(33, 'k'), std::string(64, 'a')}) {
    std::ofstream(path, std::ios::trunc) << key;
    auto const opened = open_file_keys(directory_);
    ASSERT_FALSE(opened) << key.size();
    EXPECT_NE(opened.error().message().find("does not have 32 bytes"), std::string::npos);
  }
  std::filesystem::rename(path, directory_ + "/elsewhere.key");
  std::filesystem::create_symlink(directory_ + "/elsewhere.key", path);
  EXPECT_FALSE(open_file_keys(directory_)) << "a link";
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_FALSE(open_file_keys(directory_)) << "a directory";
}

}  // namespace
}  // namespace broker
