"""A server at whose doors a real guard stands, and people who may everything, nothing, and nothing any more."""

from mainstem.access.administration import AccessAdministration
from mainstem.access.token import Minted, mint
from mainstem.log.access_rows import AccessRows
from mainstem.transport.guarding import CreateTokenCall, Quota, RevokeTokenCall, Rule, SetQuotaCall, SetRuleCall
from mainstem.transport.wire import VERSION, Hello, Kind
from tests.unit.server.parts import Client, Rig, last_error


class Guarded:
    """A server with an administrator, somebody who may nothing, and tokens that are of no use."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.administration = AccessAdministration(AccessRows(rig.server.log), rig.clock)
        self.root = self.token("root", Rule("allow", "root", "all"))
        self.other = self.token("other")
        self.expired = self.token("root", seconds=1)
        self.revoked = self.token("root")
        self.administration.handle(RevokeTokenCall(self.revoked.id))
        rig.clock.advance(2)

    def token(self, principal: str, *rules: Rule, seconds: int = 0) -> Minted:
        made = mint()
        expires = self.rig.clock.now_us() + seconds * 1_000_000 if seconds else 0
        self.administration.handle(CreateTokenCall(made.id, made.digest, principal, (), expires, rules))
        return made

    def allow(self, *rules: Rule) -> None:
        for rule in rules:
            self.administration.handle(SetRuleCall(rule))

    def limit(self, *quotas: Quota) -> None:
        for quota in quotas:
            self.administration.handle(SetQuotaCall(quota))

    def revoke(self, token: Minted) -> None:
        self.administration.handle(RevokeTokenCall(token.id))

    async def connect(self, token: Minted) -> Client:
        return await (await self.rig.connect()).hello(token=token.secret, version=VERSION)

    async def refused(self, token: str) -> Exception:
        """Why a client with this token is not let in."""
        client = await self.rig.connect()
        await client.send(Kind.HELLO, 1, Hello(1, VERSION, "test", token))
        return await last_error(client)
