// space-api: the public API of an installation. Reads its configuration, builds the objects, runs
// them.
#include "base/log.hpp"
#include "controlplane/admin_key.hpp"
#include "controlplane/api.hpp"
#include "store/migrate.hpp"

#include <sys/resource.h>

#include <cstdio>

#include <boost/asio/this_coro.hpp>
#include <pwd.h>
#include <unistd.h>

namespace {

constexpr char const* usage =
    "usage: space-api [COMMAND] --config FILE\n"
    "\n"
    "  serve               (default) serve the public API on <run_dir>/api/api.sock and the "
    "proxy's questions on\n"
    "                      <run_dir>/api/internal.sock\n"
    "  migrate             bring the database up to date, making it and the programs' roles when "
    "missing; safe to\n"
    "                      repeat. On the embedded cluster it connects as role space_owner (by "
    "peer), with a\n"
    "                      database_url as that says.\n"
    "  init-admin-key      print the first admin key, with organisation and project \"default\"; "
    "when there is an\n"
    "                      admin key already, print nothing. Exit code 0 in both cases.\n"
    "  replace-admin-key   print a new one and revoke the ones that init-admin-key made before\n"
    "\n"
    "Options --migrate, --init-admin-key and --replace-admin-key do the same and may be combined, "
    "in this order.\n"
    "Exit codes: 0 done, 2 usage, 5 the database is not available, 1 anything else.\n";

struct Arguments {
  std::string config;
  bool migrate = false;
  bool init_admin_key = false;
  bool replace_admin_key = false;
  bool help = false;
  std::string wrong;

  bool serves() const { return !migrate && !init_admin_key && !replace_admin_key; }
};

Arguments parse(std::span<char*> argv) {
  Arguments out;
  for (std::size_t i = 1; i < argv.size(); ++i) {
    std::string_view const one = argv[i];
    if (one == "--config" && i + 1 < argv.size()) {
      out.config = argv[++i];
    } else if (one == "migrate" || one == "--migrate") {
      out.migrate = true;
    } else if (one == "init-admin-key" || one == "--init-admin-key") {
      out.init_admin_key = true;
    } else if (one == "replace-admin-key" || one == "--replace-admin-key") {
      out.replace_admin_key = true;
    } else if (one == "--help" || one == "-h") {
      out.help = true;
    } else if (one != "serve") {
      out.wrong = one;
    }
  }
  return out;
}

int complain(base::Error const& error) {
  std::fprintf(stderr,
               "space-api: %s%s%s\n",
               error.message().c_str(),
               error.detail().empty() ? "" : ": ",
               error.detail().c_str());
  return base::exit_code_of(error.code());
}

/// The owner's role for whoever is not the API's own user: the installer runs us as the database's
/// user.
std::string role_of(wire::Config const& config) {
  auto const* entry = ::getpwuid(::geteuid());  // NOLINT(concurrency-mt-unsafe): one thread so far
  return entry && entry->pw_name == config.api_user ? "space_api" : "space_owner";
}

int migrate(wire::Config const& config) {
  auto const migrated = store::migrate(store::database_options(config, "space_owner").conninfo);
  if (!migrated) return complain(migrated.error());
  for (auto const& name : migrated->applied)
    base::log::info("migrated", {{"migration", name}});
  base::log::info("database_ready", {{"version", migrated->version}});
  return 0;
}

int print_admin_key(wire::Config const& config, controlplane::Replace replace) {
  return async::run_main([&]() -> async::asio::awaitable<int> {
    auto const deadline = base::system_clock().in(std::chrono::seconds(20));
    store::Store store(co_await async::asio::this_coro::executor,
                       store::database_options(config, role_of(config)));
    auto key = co_await controlplane::make_admin_key(&store, replace, deadline);
    co_await store.database.close();
    if (!key) co_return complain(key.error());
    if (!key->empty()) std::printf("%s\n", key->c_str());
    co_return 0;
  });
}

int serve(wire::Config const& config) {
  // The values of credentials pass through here on their way to the broker.
  rlimit const none{0, 0};
  if (::setrlimit(RLIMIT_CORE, &none) != 0) base::log::warn("core_limit_stays", {});
  auto tokens = controlplane::Tokens::load(config.data_dir + "/api/token.key");
  if (!tokens) return complain(tokens.error());
  return async::run_main([&]() -> async::asio::awaitable<int> {
    controlplane::Api api(co_await async::asio::this_coro::executor,
                          config,
                          store::database_options(config, "space_api"),
                          std::move(*tokens));
    auto ended = co_await api.run();
    co_return ended ? 0 : complain(ended.error());
  });
}

}  // namespace

int main(int argc, char** argv) {
  auto const arguments = parse(std::span(argv, static_cast<std::size_t>(argc)));
  if (arguments.help) {
    std::fputs(usage, stdout);
    return 0;
  }
  if (!arguments.wrong.empty() || arguments.config.empty()) {
    if (!arguments.wrong.empty())
      std::fprintf(stderr, "space-api: unknown argument \"%s\"\n", arguments.wrong.c_str());
    std::fputs(usage, stderr);
    return 2;
  }
  base::log::configure("space-api", base::log::Level::info);
  auto const config = wire::load_config(arguments.config);
  if (!config) return complain(config.error());
  if (arguments.serves()) return serve(*config);
  int code = 0;
  if (arguments.migrate) code = migrate(*config);
  if (code == 0 && arguments.init_admin_key)
    code = print_admin_key(*config, controlplane::Replace::no);
  if (code == 0 && arguments.replace_admin_key)
    code = print_admin_key(*config, controlplane::Replace::yes);
  return code;
}
