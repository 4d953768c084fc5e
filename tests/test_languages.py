"""Words alone find the right record in six languages: other forms of a word, no spaces, marks left out."""

from __future__ import annotations

import pytest
from fakes import ADA

from vmem_core import Draft, InMemoryStore, MemorySession

# Of each language: the store's language, and pairs of a record and a question that shares words with it alone, most of
# them in another form.
TEXTS: dict[str, tuple[str | None, list[tuple[str, str]]]] = {
    "German": (
        "german",
        [
            ("Anna trinkt morgens am liebsten grünen Tee.", "Welche Tees mag Anna?"),
            ("Der Vertrag mit der Druckerei läuft im März aus.", "Wann enden die Verträge?"),
            ("Jonas hat eine Allergie gegen Erdnüsse.", "Welche Allergien gibt es?"),
            ("Die Katze heißt Minka und schläft auf dem Sofa.", "Wo schlafen die Katzen?"),
            ("Zum Geburtstag wünscht sich Opa ein Fernrohr.", "Was wünschte Opa?"),
            ("Im Sommer fahren wir mit dem Rad nach Kopenhagen.", "Reise nach Kopenhagen"),
            ("Der Schlüssel liegt unter dem Blumentopf.", "Wo liegen die Schlussel?"),
        ],
    ),
    "French": (
        "french",
        [
            ("Marie préfère le café sans sucre.", "Quels cafés préfèrent-ils ?"),
            ("Le chien de Paul a peur des orages.", "De quel orage les chiens ont-ils peur ?"),
            ("La réunion avec le notaire est reportée à jeudi.", "Quand sont les réunions ?"),
            ("Elle joue du violoncelle depuis dix ans.", "Qui jouait du violoncelle ?"),
            ("Nous avons loué une maison près de Nîmes.", "location d'une maison à Nimes"),
            ("Son médecin lui interdit les crevettes.", "Que interdisent les médecins ?"),
            ("Le mot de passe du garage a changé.", "changement des mots de passe"),
        ],
    ),
    "Russian": (
        "russian",
        [
            ("Иван любит зелёный чай с мёдом.", "Какие чаи любят с мёдом?"),
            ("Бабушка живёт в деревне под Тверью.", "Кто живет в деревнях?"),
            ("Встреча с юристом перенесена на пятницу.", "Когда встречи с юристами?"),
            ("У Марины аллергия на клубнику.", "У кого аллергии?"),
            ("Собаку зовут Шарик, она боится грозы.", "Чего боятся собаки?"),
            ("Летом мы едем на поезде в Казань.", "Как едут в Казань на поездах?"),
            ("Ключи от дачи лежат под ковриком.", "Где лежал ключ?"),
        ],
    ),
    "Japanese": (
        None,
        [
            ("彼女は毎朝コーヒーを飲みます。", "コーヒーが好きですか"),
            ("祖母は京都に住んでいます。", "京都の家族"),
            ("弟はピーナッツアレルギーです。", "ピーナッツは食べられる？"),
            ("会議は金曜日に延期されました。", "金曜日の会議"),
            ("猫の名前はたまです。", "猫"),
            ("夏に自転車で北海道へ行く予定です。", "北海道旅行"),
            ("鍵は植木鉢の下にあります。", "鍵はどこ"),
        ],
    ),
    "Chinese": (
        None,
        [
            ("我喜欢喝咖啡，不加糖。", "咖啡"),
            ("奶奶住在苏州的老房子里。", "谁住在苏州？"),
            ("小明对花生过敏。", "花生可以吃吗"),
            ("律师的会议改到星期五。", "星期五有什么会议"),
            ("那只猫叫豆豆，怕打雷。", "猫叫什么名字"),
            ("夏天我们骑自行车去青岛。", "青岛的旅行"),
            ("车库的密码换了。", "车库密码是什么"),
        ],
    ),
    "Arabic": (
        "arabic",
        [
            ("تحب ليلى القهوة بدون سكر.", "قهوة ليلى"),
            ("يسكن جدي في مدينة حلب.", "من يسكن في حلب؟"),
            ("لدى أحمد حساسية من الفول السوداني.", "حساسية الفول"),
            ("تأجل الاجتماع مع المحامي إلى يوم الخميس.", "متى اجتماع المحامين؟"),
            ("القطة اسمها مشمش وتخاف من الرعد.", "ما اسم قطة؟"),
            ("سنسافر في الصيف إلى عمان بالقطار.", "السفر بقطار إلى عمان"),
            ("المفتاح تحت السجادة.", "أين مفتاح؟"),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
async def test_each_question_finds_its_record_by_words_alone(name: str) -> None:
    language, pairs = TEXTS[name]
    memory = MemorySession(InMemoryStore(language=language), ADA)
    await memory.remember_many([Draft(text, id=text) for text, _ in pairs])
    found = {question: [hit.record.id for hit in await memory.recall(question)][:1] for _, question in pairs}
    assert found == {question: [text] for text, question in pairs}


async def test_languages_that_share_a_store_find_theirs_as_well() -> None:
    """English stems do no harm to scripts that are not Latin: words are found as they are written, or by pairs."""
    memory = MemorySession(InMemoryStore(), ADA)
    for _, pairs in TEXTS.values():
        await memory.remember_many([Draft(text, id=text) for text, _ in pairs])
    for name in ("Japanese", "Chinese"):
        for text, question in TEXTS[name][1]:
            assert (await memory.recall(question))[0].record.id == text
