from tests.audit.databases import *
from belljar.audit.receipts import verify_chain
async def test_x(store, signer) -> None:
    r = await run_once(store)
    assert await store.get(r.exec_id) == r
    assert await verify_chain(store, signer.public_key) == []
